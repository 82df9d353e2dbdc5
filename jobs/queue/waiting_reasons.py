"""Waiting reasons: each job's place in the queue, and the jobs that hold the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.store.job_store import JobStore
from jobs.store.records import Job

MAX_PLACES_EXPLAINED = 100
"""Waiting jobs whose reason names their exact place; later jobs read "at least 100 jobs before it"."""

MAX_JOBS_NAMED = 5
"""Running jobs that a waiting reason names."""


def update_waiting_reasons(store: JobStore, most: int | None, trouble: str | None = None) -> None:
    """Write the waiting reason of each waiting job, if it has changed.

    Args:
        store: the jobs.
        most: how many jobs may run at once; None for as many as the cluster has room for.
        trouble: why even the first job of the queue waits; by default, because other jobs run.
    """
    waiting = store.queue(limit=MAX_PLACES_EXPLAINED)
    if not waiting:
        return
    why = trouble or describe_running_jobs(store.list_active(), most)
    reasons: dict[str, str | None] = {
        job.id: _describe_place(str(place), place) + why for place, job in enumerate(waiting)
    }
    others = (
        _describe_place(f"at least {MAX_PLACES_EXPLAINED}", MAX_PLACES_EXPLAINED) + why
        if len(waiting) == MAX_PLACES_EXPLAINED
        else None
    )
    # Most passes change nothing: write only new reasons; the store itself skips the others without a change.
    new = {job.id: reasons[job.id] for job in waiting if job.waiting != reasons[job.id]}
    if others is not None or new:
        store.write_waiting_reasons(new, others, placed=reasons)


def describe_running_jobs(active: Sequence[Job], most: int | None) -> str:
    """Describe the jobs that hold the cluster: "2 of at most 2 jobs run: 6am... (demo), ...".

    Args:
        active: the jobs.
        most: how many jobs may run at once; None for as many as the cluster has room for.
    """
    named = [f"{job.id} ({job.name})" for job in active[:MAX_JOBS_NAMED]]
    if len(active) > MAX_JOBS_NAMED:
        named.append(f"{len(active) - MAX_JOBS_NAMED} more")
    who = f": {', '.join(named)}" if named else ""
    verb = "runs" if len(active) == 1 else "run"
    if most is None:
        noun, leaves = ("job", "leaves") if len(active) == 1 else ("jobs", "leave")
        return f"{len(active)} {noun} {verb} and {leaves} too few CPUs or GPUs{who}"
    noun = "job" if most == 1 else "jobs"
    return f"{len(active)} of at most {most} {noun} {verb}{who}"


def _describe_place(number: str, place: int) -> str:
    return f"{number} job{'s' * (place != 1)} before it in the queue; " if place else ""
