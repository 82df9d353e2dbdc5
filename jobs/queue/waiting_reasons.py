"""Telling jobs why they wait: their place in the queue, and who holds the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import ACTIVE

MAX_PLACES_EXPLAINED = 100
"""How many of the waiting jobs are told their place; the others hear that there are more before them."""

MAX_JOBS_NAMED = 5
"""How many of the jobs that hold the cluster are named."""


def update_waiting_reasons(store: JobStore, most: int, trouble: str | None = None) -> None:
    """Write to each job that waits why it does, where that has changed.

    Args:
        store: the jobs.
        most: how many jobs may hold the cluster.
        trouble: what keeps even the first of the queue; by default, that others hold the cluster.
    """
    waiting = store.queue(limit=MAX_PLACES_EXPLAINED)
    if not waiting:
        return
    why = trouble or describe_running_jobs(
        store.list(state=ACTIVE, order_by="created_at", limit=1000).jobs, most
    )
    reasons: dict[str, str | None] = {
        job.id: _describe_place(str(place), place) + why for place, job in enumerate(waiting)
    }
    others = (
        _describe_place(f"at least {MAX_PLACES_EXPLAINED}", MAX_PLACES_EXPLAINED) + why
        if len(waiting) == MAX_PLACES_EXPLAINED
        else None
    )
    # Most looks change nothing: of those with a place of their own only what is new is written, and the store
    # itself passes over the others that say it already.
    new = {job.id: reasons[job.id] for job in waiting if job.waiting != reasons[job.id]}
    if others is not None or new:
        store.write_waiting_reasons(new, others, placed=reasons)


def describe_running_jobs(active: Sequence[Job], most: int) -> str:
    """Who holds the cluster, in words."""
    named = [f"{job.id} ({job.name})" for job in active[:MAX_JOBS_NAMED]]
    if len(active) > MAX_JOBS_NAMED:
        named.append(f"{len(active) - MAX_JOBS_NAMED} more")
    who = f": {', '.join(named)}" if named else ""
    return f"{len(active)} of at most {most} jobs run{who}"


def _describe_place(number: str, place: int) -> str:
    return f"{number} job{'s' * (place != 1)} before it in the queue; " if place else ""
