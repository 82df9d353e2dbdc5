"""The runs of a comparison: jobs, all jobs of a sweep or with a label, and runs in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from api.comparison.compared_run import ComparedRun
from api.reports.run_files import read_compared_runs
from api.sdk import calls
from api.sdk.job_search import find_job, find_labelled
from api.sdk.rounds import read_rounds
from api.sdk.run_sources import RunSource, explain_missing_paths
from api.sdk.transport.connection import Connection
from fedsim.errors import JobNotFound, SettingsError
from jobs.spec.fields import NEW_JOB_ID
from jobs.spec.sweep import GROUP
from jobs.store.records import Job


async def read_runs(
    connection: Connection,
    runs: RunSource | Iterable[RunSource],
    label: str | Sequence[str] | None = None,
) -> list[ComparedRun]:
    """Read runs to compare, each job once.

    Args:
        connection: to the service; not used if all runs are in files.
        runs: existing paths, also of the folder of a sweep; ids of jobs or their beginnings; names of sweeps.
        label: also all jobs with this label, or with all of these labels.

    Raises:
        JobNotFound: a text is no path, no job and no sweep, or no job has the labels.
        SettingsError: there is nothing to compare, a path does not exist, or it has no round records.
    """
    sources = [runs] if isinstance(runs, str | Path) else list(runs)
    found: list[ComparedRun | Job] = []
    with explain_missing_paths(sources):
        for source in sources:
            path = Path(source).expanduser()
            if path.exists():
                found += await connection.sender.run_function(read_compared_runs, str(source), path)
            else:
                found += await find_jobs(connection, str(source))
    if label:
        labelled = await find_labelled(connection, label)
        if not labelled:
            words = label if isinstance(label, str) else " and ".join(label)
            raise JobNotFound(
                f"no job has the label {words}", "`fedsim list` shows the jobs with their labels"
            )
        found += reversed(labelled)
    if not found:
        raise SettingsError("there is nothing to compare", "give ids, sweeps, folders or labels")
    jobs = dict.fromkeys(run.id for run in found if isinstance(run, Job))
    read: list[ComparedRun] = []
    for run in found:
        if isinstance(run, ComparedRun):
            read.append(run)
        elif run.id in jobs:
            del jobs[run.id]
            records = await read_rounds(connection, run.id) if run.rounds_done else ()
            read.append(ComparedRun.from_job(run, records))
    return read


async def find_jobs(connection: Connection, text: str) -> list[Job]:
    """Find the job with an id, or all jobs of the sweep with a name, the oldest first.

    Raises:
        JobNotFound: there is no such job and no such sweep.
    """
    if NEW_JOB_ID.fullmatch(text):
        try:
            return [await connection.send(calls.get_job(text))]
        except JobNotFound:
            pass
    # The name of a sweep may be the beginning of some job's id: a whole name counts first.
    group = await find_labelled(connection, f"{GROUP}={text}")
    return list(reversed(group)) or [await find_job(connection, text)]
