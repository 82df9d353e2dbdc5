"""The jobs of a sweep: the job of each run, its state, and the metric of each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any, NamedTuple

from api.comparison.run_scores import find_common_metric
from api.sdk import calls
from api.sdk.job_search import find_labelled
from api.sdk.transport.connection import Connection
from api.sdk.waiting import Deadline, retry_while_away
from fedsim.errors import SpecError
from jobs.spec import parse_spec
from jobs.spec.sweep import GROUP, Member, Sweep
from jobs.store.records import Job
from jobs.store.states import FINAL, RESUMABLE

LONGEST_PAUSE = 3.0
"""Seconds between two looks at a group of jobs, at most."""

Jobs = dict[str, Job]
"""{hash of the spec of a run: its job}."""

News = Callable[["SweepView"], None]
"""Called with a sweep after each look at its jobs."""


class Cell(NamedTuple):
    """The metric of one cell of a sweep.

    Attributes:
        labels: {axis: label}.
        values: {seed: the metric after the last round}, for the runs that succeeded.
        expected: the number of runs of the cell.
    """

    labels: dict[str, str]
    values: dict[int, float]
    expected: int

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if no run has succeeded."""
        return fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample; None for fewer than two runs."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


class SweepView:
    """The last known state of a sweep.

    Attributes:
        sweep: the sweep's file.
        members: its runs.
        found: the job of each run, by the hash of its spec.
    """

    def __init__(self, sweep: Sweep, members: list[Member], found: Jobs | None = None) -> None:
        self.sweep, self.members = sweep, members
        self.found: Jobs = {} if found is None else found

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        return f"{type(self).__name__}({self.sweep.name!r}, {states})"

    def job_of(self, member: Member) -> Job | None:
        """Get the job of a run; None if it has been deleted."""
        return self.found.get(member.spec_hash)

    def counts(self) -> dict[str, int]:
        """Count the runs in each state; a run without a job is MISSING."""
        jobs = map(self.job_of, self.members)
        return dict(Counter("MISSING" if job is None else job.state.value for job in jobs))

    @property
    def over(self) -> bool:
        """Whether every job has ended."""
        return all(job.state in FINAL for job in self.found.values())

    @property
    def succeeded(self) -> bool:
        """Whether every run has succeeded."""
        return set(self.counts()) == {"SUCCEEDED"}

    @property
    def metric(self) -> str:
        """The metric of the sweep's file; by default the main metric of the jobs."""
        return self.sweep.metric or find_common_metric([job.last_metrics for job in self.found.values()])

    def cells(self) -> list[Cell]:
        """List the cells with their metrics, in the order of the grid."""
        axes, values = list(self.sweep.axes), {cell: dict[int, float]() for cell in self.sweep.cells()}
        metric = self.metric
        for member in self.members:
            job = self.job_of(member)
            value = job.last_metrics.get(metric) if job and job.state == "SUCCEEDED" else None
            if isinstance(value, int | float):
                values[member.run.cell][member.run.seed] = float(value)
        expected = len(self.sweep.seeds)
        return [Cell(dict(zip(axes, cell, strict=True)), found, expected) for cell, found in values.items()]

    def document(self) -> dict[str, Any]:
        """Write the sweep, its cells and its runs as plain data."""
        metric = self.metric
        runs = [
            {
                "labels": member.run.labels,
                "seed": member.run.seed,
                "job": job and job.id,
                "state": job and job.state.value,
                "value": job and job.last_metrics.get(metric),
            }
            for member in self.members
            for job in [self.job_of(member)]
        ]
        cells = [{**cell._asdict(), "mean": cell.mean, "std": cell.std} for cell in self.cells()]
        head = {"group": self.sweep.name, "metric": metric, "states": self.counts()}
        return {**head, "cells": cells, "runs": runs}


async def read_group(connection: Connection, group: str) -> list[Job]:
    """Read all jobs of a group, the youngest first."""
    return await find_labelled(connection, f"{GROUP}={group}")


async def submit_missing(connection: Connection, view: SweepView, resume: bool, news: News | None) -> None:
    """Submit the runs of a sweep that have no job yet.

    Args:
        connection: to the service.
        view: the sweep; knows its jobs afterwards.
        resume: continue the failed and cancelled jobs.
        news: called with the sweep after each submission.
    """
    view.found.update(_match_jobs(view.sweep, await read_group(connection, view.sweep.name)))
    for member in view.members:
        job = view.found.get(member.spec_hash)
        if job is None:
            view.found[member.spec_hash] = await _submit_member(connection, view.sweep, member)
        elif resume and job.state in RESUMABLE:
            view.found[member.spec_hash] = await connection.send(calls.resume(job.id))
        else:
            continue
        if news is not None:
            news(view)


async def _submit_member(connection: Connection, sweep: Sweep, member: Member) -> Job:
    try:
        call = calls.submit(member.body(), sweep.priority, member.labels, member.key)
        return await connection.send(call)
    except SpecError as error:
        # The service checks names and parameters: the message says in which run they are wrong.
        faults = (fault._replace(message=f"{fault.message} (in {member.run})") for fault in error.errors)
        raise SpecError(faults) from None


def _match_jobs(sweep: Sweep, jobs: list[Job]) -> Jobs:
    """Find the job of each run: of several, one that succeeded, else an active one, else the youngest."""
    found: Jobs = {}
    for job in sorted(jobs, key=lambda job: job.created_at, reverse=True):
        try:
            spec_hash = sweep.hash_spec(parse_spec(job.spec))
        except SpecError:
            continue  # a spec of another version: if the job is one of ours, the service finds it by its key
        if spec_hash not in found or _rank_job(job) < _rank_job(found[spec_hash]):
            found[spec_hash] = job
    return found


def _rank_job(job: Job) -> int:
    return 0 if job.state == "SUCCEEDED" else 1 if job.state not in FINAL else 2


async def refresh_sweep(connection: Connection, view: SweepView) -> None:
    """Ask for the jobs of a sweep, and forget the deleted ones."""
    by_id = {job.id: job for job in await read_group(connection, view.sweep.name)}
    for spec_hash, job in list(view.found.items()):
        if job.id in by_id:
            view.found[spec_hash] = by_id[job.id]
        else:
            del view.found[spec_hash]


async def wait_for_sweep(
    connection: Connection, view: SweepView, timeout: float | None, news: News | None
) -> None:
    """Wait until every job of a sweep has ended.

    Raises:
        TimeoutError: a job has not ended after `timeout` seconds.
    """
    deadline = Deadline(timeout, 0.2, LONGEST_PAUSE)
    while True:
        await retry_while_away(connection, lambda: refresh_sweep(connection, view), deadline.end)
        if news is not None:
            news(view)
        if view.over:
            return
        if deadline.is_over():
            raise TimeoutError(f"the sweep {view.sweep.name!r} is not over after {timeout:g} s: {view!r}")
        await connection.sender.sleep(deadline.next_pause())
