"""The queue inside the store: who stands where, who is next, and why the others wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, func, select, text, update

from jobs.store.rows import enter, row_of
from jobs.store.states import ACTIVE, JobState
from jobs.store.tables import jobs

IN_LINE = (jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
"""The order of the queue: priority, then age."""

QUEUE_LOCK = 0x66656471


def in_line(limit: int) -> Select[Any]:
    """The ids of the first jobs of the queue, which an index holds in their order."""
    return select(jobs.c.id).where(jobs.c.state == JobState.QUEUED).order_by(*IN_LINE).limit(limit)


def counting(states: Collection[JobState]) -> Select[Any]:
    """How many jobs are in one of these states."""
    return select(func.count()).select_from(jobs).where(jobs.c.state.in_([s.value for s in states]))


def take_next(connection: Connection, most: int) -> RowMapping | None:
    """Put the first job of the queue into STARTING, unless `most` jobs hold the cluster already."""
    if connection.dialect.name == "postgresql":
        # SQLite has one writer at a time; here whoever takes jobs has to be alone with the queue.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": QUEUE_LOCK})
    if connection.execute(counting(ACTIVE)).scalar_one() >= most:
        return None
    while (job_id := connection.execute(in_line(1)).scalar()) is not None:
        row = row_of(connection, job_id, lock=True)
        # Somebody may have cancelled it while its row was waited for.
        if row["state"] == JobState.QUEUED:
            enter(connection, row, JobState.STARTING, None, None)
            return row_of(connection, job_id)
    return None


def explain(
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
