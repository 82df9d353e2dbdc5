"""A sweep on this machine, without the service: each run is a folder, as `fedsim run --out` makes it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from api.cli.run_folder import RunFolder, make_run_document, write_run_files
from api.reports.run_files import LABELS, PERSONAL, RESULT, ROUNDS
from fedsim.errors import SettingsError
from jobs.run.listener import RunListener
from jobs.spec.sweep import Member
from jobs.store.records import RoundRecord
from jobs.store.states import JobState

if TYPE_CHECKING:
    from fedsim.core.personal_scores import PersonalScores
    from jobs.settings import Settings


class LocalRun(NamedTuple):
    """An ended run of a sweep on this machine, with the fields of a job that a sweep's table reads.

    Attributes:
        id: its folder.
        state: succeeded or failed.
        last_metrics: of the round of the result.
        message: why it failed; "" if it did not.
    """

    id: str
    state: JobState
    last_metrics: dict[str, Any]
    message: str = ""


class _FolderListener(RunListener):
    """Writes each round of a run into its folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_attempt(self, attempt: Any) -> None:
        self.folder.begin_attempt()

    def on_personal_scores(self, scores: PersonalScores) -> None:
        (self.folder.path / PERSONAL).write_text(scores.to_csv(), "utf-8")

    def on_round(self, record: RoundRecord) -> None:
        self.folder.add_round(record)


class _Runner:
    """Makes runs of a sweep in this process, or on Ray if they need it."""

    def __init__(self, settings: Settings, without_ray: bool) -> None:
        self.settings, self.without_ray = settings, without_ray

    def __call__(self, piece: tuple[Member, Path]) -> str:
        """Make a run, or continue it from its checkpoint; return why it failed, "" if it did not."""
        from jobs.run.execute import execute

        member, path = piece
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = RunFolder(path, member.spec, resume=True, overwrite=False)
            (path / LABELS).write_text(json.dumps(member.labels), "utf-8")
            result = execute(
                member.spec,
                self.settings,
                checkpoints=folder.checkpoint_url,
                resume=True,
                listener=_FolderListener(folder),
                without_ray=self.without_ray,
            )
            write_run_files(path, make_run_document(result), result, resumed=True)
        except (Exception, SystemExit) as error:  # one broken run must not end the sweep
            return f"{type(error).__name__}: {error}"
        return ""


def count_finished(members: Sequence[Member], folder: Path) -> int:
    """Count the runs of a sweep that its folder has."""
    return sum((folder / name_folder(member) / RESULT).exists() for member in members)


def run_sweep(
    members: Sequence[Member], folder: Path, settings: Settings, processes: int | None
) -> Iterator[tuple[Member, LocalRun]]:
    """Make the runs of a sweep that the folder lacks.

    Args:
        members: the runs.
        folder: of the sweep; each run has a folder in it. An unfinished run continues.
        settings: where data and Ray are.
        processes: runs at a time, each in a process with one thread; None for one after the other, as
            `fedsim run` does, on Ray if they need it.

    Yields:
        Each run as it ends, first those that the folder has.
    """
    missing = list[tuple[Member, Path]]()
    for member in members:
        path = folder / name_folder(member)
        # Written last: a stop rule may end a run early, and one without checkpoints leaves no progress.
        if (path / RESULT).exists():
            yield member, _read_ended(path, "")
        else:
            missing.append((member, path))
    if processes is None:
        runner = _Runner(settings, without_ray=False)
        with _open_ray([member for member, _ in missing], settings):
            for member, path in missing:
                yield member, _read_ended(path, runner((member, path)))
        return
    from jobs.run.without_ray.processes import finish_pieces

    at_once = min(processes, len(missing) or 1)
    for (member, path), fault in finish_pieces(missing, at_once, _Runner, (settings, True)):
        yield member, _read_ended(path, fault)


def require_no_gpus(members: Sequence[Member]) -> None:
    """Refuse specs that ask for GPUs: the processes of a pool train on CPUs.

    Raises:
        SettingsError: a spec does.
    """
    for member in members:
        resources = member.spec.resources
        if resources.gpus_per_worker or resources.server_gpus:
            message = f"--on pool trains on CPUs, and a run asks for a GPU ({member.run})"
            raise SettingsError(message, "--on ray, or set resources.gpus_per_worker and server_gpus to 0")


def _open_ray(members: Sequence[Member], settings: Settings) -> AbstractContextManager[object]:
    """Start Ray once for all runs that need it; short runs need none."""
    from jobs.spec.run_size import is_short

    if settings.ray_address is None and all(is_short(member.spec, settings) for member in members):
        return nullcontext()
    from jobs.run.ray_connection import connect_to_ray

    return connect_to_ray(settings)


def name_folder(member: Member) -> str:
    """Name the folder of a run by its cell and seed, and by a hash of the spec with the stack size.

    >>> from jobs.spec.sweep import members, read_sweep
    >>> sweep = read_sweep({"base": "demo", "axes": {"local.lr": [0.1]}, "seeds": [1]})
    >>> name_folder(members(sweep)[0]).rpartition("-")[0]
    '0.1-seed-1'
    """
    # The stack size decides the last bits of a result, and so whether a checkpoint may go on.
    spec = f"{member.spec_hash} {member.spec.resources.stack}"
    mark = hashlib.sha256(spec.encode()).hexdigest()[:16]
    return "-".join(filter(None, [make_slug("-".join(member.run.cell)), f"seed-{member.run.seed}", mark]))


def make_slug(text: str) -> str:
    """Turn a text into a part of a folder's name.

    >>> make_slug("Dir(0.1), a/../b")
    'Dir-0.1-a-..-b'
    """
    return re.sub(r"[^A-Za-z0-9._=]+", "-", text).strip("-.")[:60]


def _read_ended(path: Path, fault: str) -> LocalRun:
    if fault:
        return LocalRun(str(path), JobState.FAILED, {}, fault)
    last = RoundRecord.model_validate_json((path / ROUNDS).read_text("utf-8").rstrip("\n").split("\n")[-1])
    return LocalRun(str(path), JobState.SUCCEEDED, last.result_metrics)
