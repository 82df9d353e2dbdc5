"""A sweep on this machine, without the service: each run is a folder, as `fedsim run --out` makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from api.cli.run_folder import RunFolder, make_run_document, write_run_files
from api.reports.run_files import PERSONAL, RESULT, ROUNDS
from jobs.run.listener import RunListener
from jobs.spec.sweep import Member
from jobs.store.states import JobState

if TYPE_CHECKING:
    from fedsim.core.personal_scores import PersonalScores
    from jobs.settings import Settings
    from jobs.spec import JobSpec
    from jobs.store.records import RoundRecord


class LocalRun(NamedTuple):
    """An ended run of a sweep on this machine, with the fields of a job that a sweep's table reads.

    Attributes:
        id: its folder.
        state: succeeded or failed.
        last_metrics: of its last round.
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

    def __call__(self, piece: tuple[JobSpec, Path]) -> str:
        """Make a run, or continue it from its checkpoint; return why it failed, "" if it did not."""
        from jobs.run.execute import execute

        spec, path = piece
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = RunFolder(path, spec, resume=True, overwrite=False)
            result = execute(
                spec,
                self.settings,
                checkpoints=folder.checkpoint_url,
                resume=True,
                listener=_FolderListener(folder),
                without_ray=self.without_ray,
            )
            write_run_files(path, make_run_document(result), result, resumed=True)
        except Exception as error:  # one broken run must not end the sweep
            return f"{type(error).__name__}: {error}"
        return ""


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
    places = {member.spec_hash: folder / name_folder(member) for member in members}
    missing = list[Member]()
    for member in members:
        path = places[member.spec_hash]
        # Written at the end: a stop rule may end a run early, and one without checkpoints leaves no progress.
        if (path / RESULT).exists():
            yield member, _read_ended(path, "")
        else:
            missing.append(member)
    if processes is None:
        runner = _Runner(settings, without_ray=False)
        for member in missing:
            path = places[member.spec_hash]
            yield member, _read_ended(path, runner((member.spec, path)))
        return
    from jobs.run.without_ray.processes import open_processes

    with open_processes(min(processes, len(missing) or 1), _Runner, (settings, True)) as submit:
        futures = {submit((member.spec, places[member.spec_hash])): member for member in missing}
        for future in as_completed(futures):
            member = futures[future]
            yield member, _read_ended(places[member.spec_hash], future.result())


def name_folder(member: Member) -> str:
    """Name the folder of a run by its cell and seed; the hash tells a run of a changed sweep from it.

    >>> from jobs.spec.sweep import members, read_sweep
    >>> sweep = read_sweep({"base": "demo", "axes": {"local.lr": [0.1]}, "seeds": [1]})
    >>> name_folder(members(sweep)[0]).rpartition("-")[0]
    '0.1-seed-1'
    """
    words = "-".join([*member.run.cell, f"seed-{member.run.seed}"])
    return f"{re.sub(r'[^A-Za-z0-9._=-]+', '-', words).strip('-.')[:80]}-{member.spec_hash[:6]}"


def _read_ended(path: Path, fault: str) -> LocalRun:
    if fault:
        return LocalRun(str(path), JobState.FAILED, {}, fault)
    last = (path / ROUNDS).read_text("utf-8").splitlines()[-1]
    return LocalRun(str(path), JobState.SUCCEEDED, json.loads(last)["metrics"])
