"""The queue inside the store: who stands where, who is next, and why the others wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, func, select, text, update

from jobs.store.rows import enter_state, read_job_row
from jobs.store.states import ACTIVE, JobState
from jobs.store.tables import jobs

QUEUE_ORDER = (jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
"""The order of the queue: priority, then age."""

QUEUE_LOCK = 0x66656471


def select_queue(limit: int) -> Select[Any]:
    """The ids of the first jobs of the queue, which an index holds in their order."""
    return select(jobs.c.id).where(jobs.c.state == JobState.QUEUED).order_by(*QUEUE_ORDER).limit(limit)


def select_count(states: Collection[JobState]) -> Select[Any]:
    """How many jobs are in one of these states."""
    return select(func.count()).select_from(jobs).where(jobs.c.state.in_([s.value for s in states]))


def start_next_job(connection: Connection, most: int) -> RowMapping | None:
    """Put the first job of the queue into STARTING, unless `most` jobs hold the cluster already."""
    if connection.dialect.name == "postgresql":
        # SQLite has one writer at a time; here whoever takes jobs has to be alone with the queue.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": QUEUE_LOCK})
    if connection.execute(select_count(ACTIVE)).scalar_one() >= most:
        return None
    while (job_id := connection.execute(select_queue(1)).scalar()) is not None:
        row = read_job_row(connection, job_id, lock=True)
        # Somebody may have cancelled it while its row was waited for.
        if row["state"] == JobState.QUEUED:
            enter_state(connection, row, JobState.STARTING, None, None)
            return read_job_row(connection, job_id)
    return None


def write_waiting_reasons(
    connection: Connection,
    reasons: Mapping[str, str | None],
    others: str | None,
    placed: Collection[str] = (),
) -> None:
    """Write why jobs wait: `reasons` by their ids, and `others`, if not None, for all but those `placed`."""
    queued = jobs.c.state == JobState.QUEUED
    for job_id, words in reasons.items():
        connection.execute(update(jobs).where(and_(jobs.c.id == job_id, queued)).values(waiting=words))
    if others is not None:
        rest = and_(queued, jobs.c.id.not_in([*reasons, *placed]), jobs.c.waiting.is_distinct_from(others))
        connection.execute(update(jobs).where(rest).values(waiting=others))
