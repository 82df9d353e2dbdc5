"""The jobs of a sweep, as far as they are known: which run has which job, how they stand, what they gave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import fmean, stdev
from typing import Any, NamedTuple

from api.sdk import calls
from api.sdk.flows import Flow, patiently
from fedsim.errors import SpecError
from jobs.spec import parse_spec
from jobs.spec.sweep import GROUP, Member, Sweep
from jobs.store.records import Job, JobPage
from jobs.store.states import FINAL, RESUMABLE

GROUP_PAGE = 500
LONGEST_PAUSE = 3.0
"""Seconds between two looks at a group of jobs, at most."""

Jobs = Mapping[str, Job]
"""{mark of a run: its job}."""

News = Callable[["SweepView"], None]
"""Is shown a sweep whenever it has been looked at."""


class Cell(NamedTuple):
    """What the runs of one cell gave.

    Attributes:
        labels: {axis: label}.
        values: {seed: the metric after the last round}, of the runs that succeeded.
        expected: how many runs there are to be.
    """

    labels: dict[str, str]
    values: dict[int, float]
    expected: int

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None where none has succeeded."""
        return fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample; None for fewer than two."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


class SweepView:
    """What is known of a sweep without asking.

    Attributes:
        sweep: as it was written.
        members: its runs.
    """

    def __init__(self, sweep: Sweep, members: list[Member]) -> None:
        self.sweep, self.members = sweep, members
        self.found: Jobs = {}

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        return f"{type(self).__name__}({self.sweep.name!r}, {states})"

    def job_of(self, member: Member) -> Job | None:
        """The job of a run; None where it has been deleted."""
        return self.found.get(member.spec_hash)

    def counts(self) -> dict[str, int]:
        """How many runs are in which state; those without a job are MISSING."""
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

    def cells(self) -> list[Cell]:
        """What each cell gave, in the order of the grid."""
        axes, values = list(self.sweep.axes), {cell: dict[int, float]() for cell in self.sweep.cells()}
        for member in self.members:
            job = self.job_of(member)
            value = job.last_metrics.get(self.sweep.metric) if job and job.state == "SUCCEEDED" else None
            if isinstance(value, int | float):
                values[member.run.cell][member.run.seed] = float(value)
        expected = len(self.sweep.seeds)
        return [Cell(dict(zip(axes, cell, strict=True)), found, expected) for cell, found in values.items()]

    def document(self) -> dict[str, Any]:
        """Everything about the sweep as plain data."""
        runs = [
            {
                "labels": member.run.labels,
                "seed": member.run.seed,
                "job": job and job.id,
                "state": job and job.state.value,
                "value": job and job.last_metrics.get(self.sweep.metric),
            }
            for member in self.members
            for job in [self.job_of(member)]
        ]
        cells = [{**cell._asdict(), "mean": cell.mean, "std": cell.std} for cell in self.cells()]
        head = {"group": self.sweep.name, "metric": self.sweep.metric, "states": self.counts()}
        return {**head, "cells": cells, "runs": runs}


def group_jobs(group: str) -> Flow[list[Job]]:
    """Read all jobs of a group, the youngest first."""
    jobs: list[Job] = []
    token: str | None = None
    while True:
        page: JobPage = yield calls.list_jobs(
            label=f"{GROUP}={group}", order_by="-created_at", limit=GROUP_PAGE, page_token=token
        )
        jobs += page.jobs
        token = page.next_page_token
        if token is None:
            return jobs


def submit_missing(view: SweepView, resume: bool, news: News | None) -> Flow[None]:
    """Submit the runs of a sweep that have no job yet.

    Args:
        view: the sweep; knows its jobs afterwards.
        resume: whether jobs that failed or were cancelled are to go on.
        news: is shown the sweep after each submission.
    """
    jobs = yield from group_jobs(view.sweep.name)
    found = dict(_by_mark(view.sweep, jobs))
    view.found = found
    for member in view.members:
        job = found.get(member.spec_hash)
        if job is None:
            found[member.spec_hash] = yield from _submit(view.sweep, member)
        elif resume and job.state in RESUMABLE:
            found[member.spec_hash] = yield calls.resume(job.id)
        else:
            continue
        if news is not None:
            news(view)


def _submit(sweep: Sweep, member: Member) -> Flow[Job]:
    try:
        job: Job = yield calls.submit(member.body(), sweep.priority, member.labels, member.key)
    except SpecError as error:
        # Names and parameters are the service's to check: say in which run they are wrong.
        faults = (fault._replace(message=f"{fault.message} (in {member.run})") for fault in error.errors)
        raise SpecError(faults) from None
    return job


def _by_mark(sweep: Sweep, jobs: list[Job]) -> dict[str, Job]:
    """Jobs by what they run; of several, one that succeeded, else one under way, else the youngest."""
    found: dict[str, Job] = {}
    for job in sorted(jobs, key=lambda job: job.created_at, reverse=True):
        try:
            mark = sweep.hash_spec(parse_spec(job.spec))
        except SpecError:
            continue  # a spec of another version: if it is one of ours, its key will say so
        if mark not in found or _rank(job) < _rank(found[mark]):
            found[mark] = job
    return found


def _rank(job: Job) -> int:
    return 0 if job.state == "SUCCEEDED" else 1 if job.state not in FINAL else 2


def look(view: SweepView) -> Flow[None]:
    """Ask how the jobs of a sweep stand."""
    jobs = yield from group_jobs(view.sweep.name)
    by_id = {job.id: job for job in jobs}
    view.found = {mark: by_id[job.id] for mark, job in view.found.items() if job.id in by_id}


def wait_for_all(view: SweepView, timeout: float | None, news: News | None) -> Flow[None]:
    """Wait until every job of a sweep has ended.

    Raises:
        TimeoutError: they have not, after `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    pause = 0.2
    while True:
        yield from patiently(lambda: look(view), end)
        if news is not None:
            news(view)
        if view.over:
            return
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"the sweep {view.sweep.name!r} is not over after {timeout:g} s: {view!r}")
        yield pause if end is None else max(0.0, min(pause, end - time.monotonic()))
        pause = min(LONGEST_PAUSE, pause * 1.5)
