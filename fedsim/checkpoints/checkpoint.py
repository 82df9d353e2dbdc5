"""Checkpoints: the checkpoints of a run on disk or in object storage; it continues from them bit for bit.

docs/operations.md lists the contents. A checkpoint in memory is `fedsim.engine.resume_point.Checkpoint`: the
engine continues from it, and the engine must not import this package.

All random streams of a run are addressed by round (see `fedsim.base.rng`), so the round number is also the
position of every random stream.

A checkpoint is a manifest, such as `manifest-000020.json`. It names the files of the checkpoint, each with
its SHA-256. The manifest is written last, so a half-written checkpoint does not count. The last two
checkpoints are kept. Nothing in the files is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from fedsim.base.digest import digest
from fedsim.checkpoints.serialization import pack
from fedsim.checkpoints.storage import Folder
from fedsim.checkpoints.stored_files import StoredClientStates, StoredFile, StoredRecords
from fedsim.checkpoints.stored_flights import FLIGHTS, load_flights, save_flights
from fedsim.checkpoints.stored_models import KINDS, StoredModels
from fedsim.engine.evaluation.model_selection import BestModel, ChosenModel
from fedsim.engine.results import RoundResult
from fedsim.engine.resume_point import Checkpoint
from fedsim.errors import CheckpointError

if TYPE_CHECKING:
    from fedsim.engine.client_pool import ClientPool

FORMAT = 1
"""The format of a manifest. A change that older versions would misread needs a new number. An optional new
field needs none: it is read with `.get`, and older versions ignore it.

Some keys are older than the words of the code: `memories` are the client states, `memory_digest` is their
digest, and `width` is the stack size."""

KEPT_CHECKPOINTS = 2
MANIFEST = re.compile(r"manifest-(\d{6,})\.json")
OURS = re.compile(r"\.?(manifest|state|flights|chosen|best|memories|records|probe)-[0-9a-z.-]+")
"""Names of the files that a checkpoint may delete. `_Manifest.files` must list every file that a checkpoint
needs, because all others of these names are deleted."""


@dataclass(frozen=True)
class _Manifest:
    """A readable manifest: its file name, its round and its content."""

    name: str
    round: int
    content: Mapping[str, Any]

    def files(self) -> set[str]:
        """Return the names of all files of the checkpoint, including the manifest itself."""
        entries = [self.content["state"], *self.content["memories"], *self.content["records"]]
        entries += [self.content[kind] for kind in (*KINDS, FLIGHTS) if self.content.get(kind)]
        return {self.name, *(entry["name"] for entry in entries)}


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        url: the folder: a path, or any URL that fsspec supports.
        experiment: the settings that define the run, as plain data; a checkpoint of another experiment is
            refused.

    Raises:
        CheckpointError: the URL cannot be used. Every method raises it too, with the URL and the cause.
    """

    def __init__(self, url: str, experiment: Mapping[str, Any] | None = None) -> None:
        self.folder = Folder(url)
        self.experiment = json.loads(json.dumps(experiment or {}))
        self._client_states, self._records = StoredClientStates(self.folder), StoredRecords(self.folder)
        self._changed: set[int] = set()
        self._fresh: list[Mapping[str, Any]] = []
        self._kept: list[_Manifest] = []
        self._models = StoredModels(self.folder)

    def check_writable(self) -> None:
        """Raise CheckpointError if checkpoints cannot be written; call it before the run starts."""
        self.folder.check_writable()

    def clear(self) -> None:
        """Remove all checkpoints in the folder, as a new run does at its start."""
        found = [name for name in self.folder.list_files() if OURS.fullmatch(name)]
        self.folder.remove_files(sorted(found, key=lambda name: not MANIFEST.fullmatch(name)))

    def read_progress(self) -> tuple[int, int] | None:
        """Return the round of the newest readable checkpoint, and its total rounds; None without one."""
        for manifest in self._manifests(lambda _: None):
            return manifest.round, int(manifest.content["rounds"])
        return None

    def read_records(self) -> list[dict[str, Any]]:
        """Return the records of the newest checkpoint whose records are readable; [] without one."""
        for manifest in self._manifests(lambda _: None):
            with suppress(CheckpointError):
                return list(StoredRecords(self.folder, manifest.content["records"]))
        return []

    def check_newest(self) -> None:
        """Check that the newest checkpoint belongs to this experiment.

        Raises:
            CheckpointError: it belongs to another experiment; the message names the fields that differ.
        """
        for manifest in self._manifests(lambda _: None):
            self._check_experiment(manifest)
            return

    def load(
        self, make_template: Callable[[], Any], warn: Callable[[str], None] = lambda _: None
    ) -> Checkpoint | None:
        """Load the newest undamaged checkpoint.

        Args:
            make_template: returns a server state of the right type, such as the state before round 1; called
                only if there is a checkpoint.
            warn: called with a message for every damaged checkpoint.

        Returns:
            The checkpoint; None if the folder has none.

        Raises:
            CheckpointError: all checkpoints are damaged, or one belongs to another experiment.
        """
        damaged: list[str] = []

        def note_damage(what: str) -> None:
            damaged.append(what)
            warn(f"a checkpoint is left out: {what}")

        for manifest in self._manifests(note_damage):
            self._check_experiment(manifest)
            try:
                return self._open_checkpoint(manifest, make_template())
            except CheckpointError as error:
                note_damage(str(error))
        if damaged:
            hint = "repair it, or remove the folder and begin anew"
            reasons = "; ".join(dict.fromkeys(damaged))  # two checkpoints may share a damaged file
            raise CheckpointError(f"no checkpoint in {self.folder.url} is whole: {reasons}", hint)
        return None

    def note_round(self, result: RoundResult) -> None:
        """Note a finished round: the clients whose states it may have changed, and its record."""
        self._changed.update(result.cohort)
        self._fresh.append(result.record())

    def save(
        self,
        result: RoundResult,
        pool: ClientPool,
        rounds: int,
        chosen: ChosenModel | None = None,
        best: BestModel | None = None,
    ) -> None:
        """Write a checkpoint after a round, and remove files that are no longer needed.

        Args:
            result: the round, with the server state; `note_round` was called for it and all rounds before.
            pool: holds the client states after this round.
            rounds: total number of rounds of the run.
            chosen: the model that validation has chosen so far; it is written only when it has changed.
            best: the model that is the result so far, unless it is that of this round; written like `chosen`.
        """
        state = StoredFile.write(self.folder, "state", result.round, pack(result.state))
        self._models.save("chosen", result.round, chosen)
        self._models.save("best", result.round, best)
        self._client_states.save(result.round, self._changed, pool.client_states)
        self._records.save(result.round, self._fresh)
        content: dict[str, Any] = {
            "format": FORMAT,
            "round": result.round,
            "rounds": rounds,
            "experiment": self.experiment,
            "digest": result.digest,
            "memory_digest": result.memory_digest,
            "width": result.engine.get("width"),
            "state": state.to_entry(),
            FLIGHTS: save_flights(self.folder, result.round, result.in_flight),
            **self._models.list_entries(),
            "memories": self._client_states.list_entries(),
            "records": self._records.list_entries(),
        }
        name = f"manifest-{result.round:06d}.json"
        self.folder.write(name, _seal_manifest(content))
        self._changed, self._fresh = set(), []
        self._kept = [*self._kept, _Manifest(name, result.round, content)][-KEPT_CHECKPOINTS:]
        self._remove_unneeded_files()

    def _remove_unneeded_files(self) -> None:
        """Remove files that no kept manifest needs; manifests first, so that none ever lacks its files."""
        needed = {file for manifest in self._kept for file in manifest.files()}
        spare = [name for name in self.folder.list_files() if OURS.fullmatch(name) and name not in needed]
        self.folder.remove_files(sorted(spare, key=lambda name: not MANIFEST.fullmatch(name)))

    def _manifests(self, note: Callable[[str], None]) -> Iterator[_Manifest]:
        """Yield the readable manifests, the newest first; call `note` for each unreadable one."""
        numbers = [(int(m[1]), m[0]) for name in self.folder.list_files() if (m := MANIFEST.fullmatch(name))]
        for number, name in sorted(numbers, reverse=True):
            try:
                yield _Manifest(
                    name, number, _unseal_manifest(self.folder.read(name), self.folder.full_name(name))
                )
            except CheckpointError as error:
                note(str(error))

    def _check_experiment(self, manifest: _Manifest) -> None:
        """Raise CheckpointError if the manifest belongs to another experiment; name the fields."""
        before, counts = manifest.content["experiment"], "rounds" in self.experiment
        if counts:
            # Older checkpoints store the number of rounds beside the experiment, not in it.
            before = {"rounds": manifest.content["rounds"], **before}
        found = list_differences(before, self.experiment)
        if found:
            more = "" if counts else " (more rounds are welcome)"
            hint = f"go on with the spec as it was{more}, or begin anew in another folder"
            raise CheckpointError(
                f"{self.folder.full_name(manifest.name)} is of another experiment: {'; '.join(found)}", hint
            )

    def _open_checkpoint(self, manifest: _Manifest, template: Any) -> Checkpoint:
        """Read a checkpoint, check all its files, and continue this object from it."""
        content, where = manifest.content, self.folder.full_name(manifest.name)
        state = StoredFile.from_entry(content["state"]).unpack(self.folder, template)
        if digest(state) != content["digest"]:
            raise CheckpointError(f"{where} is damaged: the state's digest is not the one that was written")
        flights = load_flights(self.folder, content.get(FLIGHTS), manifest.round, template)
        client_states = StoredClientStates(self.folder, content["memories"])
        records = StoredRecords(self.folder, content["records"])
        memory_digest = content.get("memory_digest")
        if memory_digest is None:
            client_states.check_files()
        elif client_states.digest() != memory_digest:
            raise CheckpointError(
                f"{where} is damaged: the digest of the client states is not the one that was written"
            )
        records.check_files()
        models = StoredModels(self.folder)
        chosen = models.load("chosen", content, ChosenModel.from_fields)
        best = models.load("best", content, lambda fields: BestModel(**fields))
        newer = [name for name in self.folder.list_files() if _read_manifest_round(name) > manifest.round]
        self.folder.remove_files(newer)
        self._client_states, self._records, self._kept = client_states, records, [manifest]
        self._models = models
        return Checkpoint(
            round=manifest.round,
            state=state,
            client_states=client_states,
            records=records,
            digest=str(content["digest"]),
            stack_size=content.get("width"),
            chosen=chosen,
            best=best,
            memory_digest=memory_digest,
            in_flight=flights,
        )


def _read_manifest_round(name: str) -> int:
    """Return the round in the name of a manifest; -1 for other files."""
    found = MANIFEST.fullmatch(name)
    return int(found[1]) if found else -1


def _seal_manifest(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest, with the SHA-256 of its content."""
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    # Without indent: Python would encode the numbers of all clients with a state ten times slower.
    return json.dumps({**content, "sha256": seal}).encode()


def _unseal_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the content of a manifest.

    Raises:
        CheckpointError: the manifest is cut off or changed, or has another format.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        seal = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{name} is damaged: {error!r}") from error
    if content.get("format") != FORMAT:
        hint = "read it with the fedsim that wrote it"
        raise CheckpointError(f"{name} has the format {content.get('format')!r}, not {FORMAT}", hint)
    if hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != seal:
        raise CheckpointError(f"{name} is damaged: it is not what was written")
    return content


LONG_TEXT = 200
"""Characters of a text, such as the code of a model, of which only the first difference is shown."""


def list_differences(before: Any, now: Any, path: str = "") -> list[str]:
    """List the differences of two pieces of plain data in words, such as `local.lr was 0.1, is 0.2`."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = sorted(before.keys() | now.keys())
        return [
            line
            for key in keys
            for line in list_differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        ]
    if before == now:
        return []
    if isinstance(before, str) and isinstance(now, str) and max(len(before), len(now)) > LONG_TEXT:
        lines = zip_longest(before.splitlines(), now.splitlines())
        changed = ((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
        place, (old, new) = next(changed, (0, ("", "")))
        if not place:
            return [f"{path} has changed in its line ends"]
        return [f"{path} has changed, first in line {place}: it was {old!r}, is {new!r}"]
    return [f"{path} was {before!r}, is {now!r}"]
