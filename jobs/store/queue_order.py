"""The queue in the store: its order, the next job, and the waiting reasons.

The package `jobs.queue` starts the jobs in this order: it has the dispatcher, which serves the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, RowMapping, Select, and_, func, select, update

from jobs.store.database import lock_until_commit
from jobs.store.rows import enter_state, read_job_row
from jobs.store.states import ACTIVE, JobState
from jobs.store.tables import jobs


class SortKey(NamedTuple):
    """A column that jobs are sorted by, and whether its largest value comes first."""

    column: Column[Any]
    descending: bool

    def build_expression(self) -> ColumnElement[Any]:
        """Build the expression for ORDER BY."""
        return self.column.desc() if self.descending else self.column.asc()


QUEUE_KEYS = (SortKey(jobs.c.priority, True), SortKey(jobs.c.created_at, False), SortKey(jobs.c.id, False))
"""The order of the queue: the highest priority, then the oldest job. A resumed job keeps its `created_at`, so
it stands before younger jobs of its priority. The last key differs for all jobs. Lists of jobs sorted by
priority use these keys too (`jobs.store.paging`).

A key has to be a column of whole numbers, text or times, never null. The index `jobs_by_state` finds the jobs
of one state and priority. Without a key in it the database sorts those jobs, which is slow for very long
queues only. The order is also described in `JobReader.queue`, docs/operations.md, docs/sdk.md,
docs/glossary.md and api/page/views/cluster.js."""

QUEUE_ORDER = tuple(key.build_expression() for key in QUEUE_KEYS)
"""`QUEUE_KEYS` for ORDER BY."""

QUEUE_LOCK = 0x66656471
"""The key of PostgreSQL's advisory lock: any fixed number; this one is `fedq` in ASCII."""


def select_queue(limit: int) -> Select[Any]:
    """Select the ids of the first jobs of the queue."""
    return select(jobs.c.id).where(jobs.c.state == JobState.QUEUED).order_by(*QUEUE_ORDER).limit(limit)


def select_count(states: Collection[JobState]) -> Select[Any]:
    """Select the number of jobs in these states."""
    return select(func.count()).select_from(jobs).where(jobs.c.state.in_([s.value for s in states]))


def start_next_job(connection: Connection, most: int) -> RowMapping | None:
    """Move the first job of the queue to STARTING, unless `most` jobs are active already."""
    lock_until_commit(connection, QUEUE_LOCK)  # one dispatcher at a time
    if connection.execute(select_count(ACTIVE)).scalar_one() >= most:
        return None
    while (job_id := connection.execute(select_queue(1)).scalar()) is not None:
        row = read_job_row(connection, job_id, lock=True)
        # The job may have been cancelled during the wait for its row.
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
    """Write the waiting reasons: `reasons` by job id, and `others` for all jobs that are not in `placed`."""
    lock_until_commit(connection, QUEUE_LOCK)  # two dispatchers would lock the rows in different orders
    queued = jobs.c.state == JobState.QUEUED
    for job_id, reason in reasons.items():
        connection.execute(update(jobs).where(and_(jobs.c.id == job_id, queued)).values(waiting=reason))
    if others is not None:
        rest = and_(queued, jobs.c.id.not_in([*reasons, *placed]), jobs.c.waiting.is_distinct_from(others))
        connection.execute(update(jobs).where(rest).values(waiting=others))
