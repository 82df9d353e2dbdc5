"""RunFolder: the folder of `fedsim run --out`: it has the run while it runs, and its result at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from api.reports.run_files import CSV, LABELS, PERSONAL, RESULT, ROUNDS, SPEC
from fedsim.errors import SettingsError
from jobs.spec.spec_text import dump_spec

if TYPE_CHECKING:
    from jobs.run.run_result import RunResult
    from jobs.spec import JobSpec
    from jobs.store.records import RoundRecord

TRACKING_ID = "tracking-id"


class RunFolder:
    """A folder for the files of one run. Nothing in it changes before `begin`.

    Args:
        path: an existing folder.
        spec: of the run.
        resume: whether the run continues the one that the folder has.
        overwrite: whether the run replaces the one that the folder has.

    Raises:
        SettingsError: the folder has a run, and neither is given; or a run of another experiment is to be
            continued.
    """

    def __init__(self, path: Path, spec: JobSpec, *, resume: bool, overwrite: bool) -> None:
        self.path, self.spec, self.overwrite = path, spec, overwrite
        self._has_begun = self._has_rounds = False
        self._resume, self._tracking_id = resume, ""
        if resume:
            self._check_experiment()
        elif not overwrite and ((path / ROUNDS).exists() or self._read_progress()):
            hint = "--resume continues it, --overwrite replaces it; or name another folder"
            raise SettingsError(f"--out {str(path)!r} has a run{self._describe_progress()}", hint)

    @property
    def checkpoint_url(self) -> str:
        """The folder of the checkpoints: absolute, because the coordinator may work in another folder."""
        return str(self.path.absolute() / "checkpoints")

    def make_tracking_id(self) -> str:
        """Return the id of the run in trackers; `begin` keeps it in the folder for a run that continues."""
        file = self.path / TRACKING_ID
        known = self._resume and file.exists()
        self._tracking_id = file.read_text("utf-8") if known else uuid4().hex[:16]
        return self._tracking_id

    @property
    def stop_file(self) -> Path:
        """A file that asks the run to end after the current round, with a checkpoint."""
        return self.path.absolute() / "stop"

    def ask_to_stop(self) -> bool:
        """Ask the run to end after the current round; return False without checkpoints, or before round 1."""
        if not (self._has_rounds and self.spec.checkpoint.every):
            return False
        self.stop_file.touch()
        return True

    def begin_attempt(self) -> None:
        """Begin a new run. One that continues begins with its first record: its checkpoint may be refused."""
        self.stop_file.unlink(missing_ok=True)
        if not self._resume:
            self.begin()

    def begin(self) -> None:
        """Write the spec, and make room for the records of the rounds; only the first call counts."""
        if self._has_begun:
            return
        self._has_begun = True
        if self.overwrite:
            self._remove_run()
        data = self.spec.model_dump(mode="json")
        (self.path / SPEC).write_text(dump_spec(data), "utf-8")
        if self._tracking_id:
            (self.path / TRACKING_ID).write_text(self._tracking_id, "utf-8")
        # A run that continues gets the records of its checkpoint again.
        (self.path / ROUNDS).write_text("", "utf-8")

    def add_round(self, record: RoundRecord) -> None:
        """Append a record, so that other commands can follow the run and an interruption loses none."""
        self.begin()
        self._has_rounds = True
        with (self.path / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(_format_record(record.model_dump(mode="json")))

    def describe_finished(self) -> str:
        """Describe that the folder's run has all its rounds, and how to add some; return "" if it has not."""
        progress = self._read_progress()
        if progress is None or progress[0] < self.spec.rounds or not (self.path / RESULT).exists():
            return ""
        return f"{self.path} has a finished run of {progress[0]} rounds; --resume --set rounds=N adds rounds"

    def describe_rest(self) -> str:
        """Describe what an interrupted run leaves, and how to continue it."""
        self.stop_file.unlink(missing_ok=True)
        progress = self._read_progress()
        if progress is None:
            return f"{self.path} has no checkpoint yet: --out {self.path} --resume begins anew"
        return f"--out {self.path} --resume continues after round {progress[0]} of {progress[1]}"

    def _read_progress(self) -> tuple[int, int] | None:
        from fedsim.checkpoints.checkpoint import Checkpoints

        return Checkpoints(self.checkpoint_url).read_progress()

    def _describe_progress(self) -> str:
        progress = self._read_progress()
        return f": round {progress[0]} of {progress[1]}" if progress else ""

    def _check_experiment(self) -> None:
        """Raise SettingsError if the folder has a run of another experiment.

        The checkpoint is compared later, when the hashes of initial weights are known.
        """
        from fedsim.checkpoints.checkpoint import list_differences
        from jobs.run.checkpoint_policy import describe_experiment
        from jobs.spec import load_spec

        if (self.path / SPEC).exists():
            specs = load_spec(self.path / SPEC), self.spec
            before, now = (describe_experiment(spec, with_hashes=False) for spec in specs)
            if found := list_differences(before, now):
                raise SettingsError(
                    f"--out {str(self.path)!r} has a run of another experiment: {'; '.join(found)}",
                    "name another folder, or replace the run with --overwrite",
                )

    def _remove_run(self) -> None:
        """Remove the files of the earlier run; the coordinator removes its checkpoints."""
        from jobs.run.artifacts import CHOSEN, MODEL

        for name in (SPEC, LABELS, TRACKING_ID, ROUNDS, CSV, RESULT, PERSONAL, MODEL, CHOSEN):
            (self.path / name).unlink(missing_ok=True)


def make_run_document(result: RunResult) -> dict[str, Any]:
    """Return spec, rounds and result of a run as plain data, as `--format json` prints them."""
    return {
        "spec": result.spec.model_dump(mode="json"),
        "rounds": [record.model_dump(mode="json") for record in result.records],
        "result": result.document(),
    }


def write_run_files(
    folder: Path, document: dict[str, Any], result: RunResult, *, resumed: bool = False
) -> list[str]:
    """Write a finished run: spec.yaml, rounds.jsonl, rounds.csv, result.json, model.safetensors.

    A personal evaluation adds personal.csv; a validation split adds chosen.safetensors.

    Args:
        folder: existing output folder.
        document: as `make_run_document` makes it.
        result: the run.
        resumed: whether the run continued an earlier run in this folder.

    Returns:
        The names of the files.
    """
    from api.sdk.round_table import format_csv, list_columns

    records = result.records
    files = {
        SPEC: dump_spec(document["spec"]),
        ROUNDS: "".join(map(_format_record, document["rounds"])),
        CSV: "".join(format_csv(list_columns(records), records)),
        RESULT: json.dumps(document["result"], indent=2, ensure_ascii=False) + "\n",
    }
    if result.personal is not None:
        files[PERSONAL] = result.personal.to_csv()
    elif not resumed:
        (folder / PERSONAL).unlink(missing_ok=True)  # of an earlier run with other clients
    for name, text in files.items():
        if name != RESULT:
            (folder / name).write_text(text, encoding="utf-8")
    models = _write_models(folder, result)
    # Last, and whole: a folder with a result has all files.
    draft = folder / f".{RESULT}"
    draft.write_text(files[RESULT], encoding="utf-8")
    draft.replace(folder / RESULT)
    return [*files, *models]


def _write_models(folder: Path, result: RunResult) -> Sequence[str]:
    """Write the last model and the model chosen by validation; remove files of an earlier run."""
    from jobs.run.artifacts import CHOSEN, MODEL, pack_chosen_model, pack_model

    chosen = result.chosen_model
    contents = {
        MODEL: pack_model(result.model, result.notes) if result.model else None,
        CHOSEN: None if chosen is None else pack_chosen_model(chosen, result.notes),
    }
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).write_bytes(content)
    return [name for name, content in contents.items() if content is not None]


def _format_record(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
