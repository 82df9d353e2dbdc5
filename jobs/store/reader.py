"""JobReader: the read-only methods of the job store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, takewhile
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, Select, Text, and_, cast, func, select

from jobs.spec import JobSpec
from jobs.spec.submission import check_submission
from jobs.store.curves import Curve, read_curves
from jobs.store.paging import make_job_query
from jobs.store.queue_order import QUEUE_ORDER, select_count, select_queue
from jobs.store.records import Job, JobEvent, JobPage, RoundRecord
from jobs.store.rows import check_same_submission, event_of, find_job_by_key, job_of, read_job_row
from jobs.store.states import ACTIVE, JobState
from jobs.store.tables import events, jobs, rounds
from jobs.store.totals import Totals, read_totals


def count_bytes(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Make the expression for the length of a JSON column as text."""
    return func.coalesce(func.length(cast(column, Text)), 0)


def count_that_fit(lengths: Iterable[int], most_bytes: int) -> int:
    """Count the first items whose lengths add up to `most_bytes` at most; at least 1. It reads few behind."""
    return max(1, sum(1 for _ in takewhile(lambda end: end <= most_bytes, accumulate(lengths))))


def count_rows_that_fit(connection: Connection, lengths: Select[Any], most_bytes: int) -> int:
    """Count the first rows of a query for lengths in the same way.

    The database reads a row whole to know its length: it stops soon behind the last row that fits.
    """
    with connection.execute(lengths, execution_options={"stream_results": True}) as found:
        return count_that_fit(found.scalars(), most_bytes)


def limit_bytes(
    connection: Connection, query: Select[Any], length: ColumnElement[int], most_bytes: int | None
) -> Select[Any]:
    """Limit a query to its first rows of `most_bytes` in all, at least one; None leaves it as it is."""
    if most_bytes is None:
        return query
    return query.limit(count_rows_that_fit(connection, query.with_only_columns(length), most_bytes))


class JobReader:
    """Reads jobs, their rounds and their events.

    Args:
        engine: on a database with the newest schema.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        """Close the connections; no method may be called afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            JobNotFound: if no job has this id.
        """
        with self._engine.connect() as connection:
            return job_of(read_job_row(connection, job_id))

    def find_submitted_job(
        self, spec: JobSpec, *, priority: int, labels: Mapping[str, str], idempotency_key: str | None
    ) -> Job | None:
        """Return the job that an earlier, equal submission made; see `JobStore.create` for the arguments.

        Raises:
            RequestError: if a priority, a label or the key cannot be stored.
            Conflict: if the key was used for another body.
        """
        submission = check_submission(spec, priority, labels, idempotency_key)
        if submission.idempotency_key is None:
            return None
        with self._engine.connect() as connection:
            row = find_job_by_key(connection, submission.idempotency_key)
        if row is None:
            return None
        check_same_submission(row, submission)
        return job_of(row)

    def list(
        self,
        state: JobState | Collection[JobState] | None = None,
        label: str | Collection[str] | None = None,
        order_by: str = "-created_at",
        limit: int = 50,
        page_token: str | None = None,
        *,
        algorithm: str | None = None,
        search: str | None = None,
        most_bytes: int | None = None,
    ) -> JobPage:
        """Return a page of jobs; see `jobs.store.paging.make_job_query` for the arguments.

        With `most_bytes` the page ends before the specs of its jobs have more bytes; it has at least one job.

        Raises:
            RequestError: if a limit, an order or a filter is wrong.
            BadPageToken: if the token belongs to another list.
        """
        query = make_job_query(state, label, order_by, limit, algorithm, search)
        with self._engine.connect() as connection:
            statement = query.build_statement(page_token)
            if most_bytes is not None:
                lengths = statement.with_only_columns(count_bytes(jobs.c.spec)).limit(limit)
                limit = count_rows_that_fit(connection, lengths, most_bytes)
            found = connection.execute(statement.limit(limit + 1)).mappings().all()
            counts = {state: count for state, count in connection.execute(query.build_count_statement())}
        page, more = found[:limit], len(found) > limit
        return JobPage(
            jobs=[job_of(r) for r in page],
            next_page_token=query.make_page_token(page[-1]) if more else None,
            counts=counts,
        )

    def queue(self, limit: int = 100) -> tuple[Job, ...]:
        """Return the first queued jobs in the order in which they will run: priority, then age."""
        query = select(jobs).where(jobs.c.id.in_(select_queue(limit))).order_by(*QUEUE_ORDER)
        with self._engine.connect() as connection:
            return tuple(job_of(row) for row in connection.execute(query).mappings())

    def list_active(self) -> tuple[Job, ...]:
        """Return all active jobs, the oldest first."""
        query = select(jobs).where(jobs.c.state.in_([state.value for state in ACTIVE]))
        with self._engine.connect() as connection:
            found = connection.execute(query.order_by(jobs.c.created_at, jobs.c.id))
            return tuple(job_of(row) for row in found.mappings())

    def count(self, states: Collection[JobState]) -> int:
        """Return how many jobs are in one of these states."""
        with self._engine.connect() as connection:
            return int(connection.execute(select_count(states)).scalar_one())

    def totals(self) -> Totals:
        """Return the sums over all jobs so far."""
        return read_totals(self._engine)

    def rounds(
        self, job_id: str, after: int = -1, limit: int | None = None, most_bytes: int | None = None
    ) -> tuple[RoundRecord, ...]:
        """Return the rounds of a job after the round `after`, in order.

        Args:
            job_id: the job.
            after: a number of a round.
            limit: the most rounds.
            most_bytes: the rounds end before their records have more bytes, but there is at least one.

        Raises:
            JobNotFound: if no job has this id.
        """
        query = select(rounds.c.record).where(rounds.c.job_id == job_id, rounds.c.round > after)
        query = query.order_by(rounds.c.round).limit(limit)
        with self._engine.connect() as connection:
            query = limit_bytes(connection, query, count_bytes(rounds.c.record), most_bytes)
            found = connection.execute(query).scalars().all()
            if not found:
                read_job_row(connection, job_id)
        return tuple(RoundRecord.model_validate(record) for record in found)

    def count_record_bytes(self, job_id: str) -> int:
        """Count the bytes of the records of all rounds of a job; 0 for an unknown job."""
        query = select(func.coalesce(func.sum(count_bytes(rounds.c.record)), 0))
        with self._engine.connect() as connection:
            return int(connection.execute(query.where(rounds.c.job_id == job_id)).scalar_one())

    def events(
        self, job_id: str, after: int = 0, limit: int = 1000, most_bytes: int | None = None
    ) -> tuple[JobEvent, ...]:
        """Return the events of a job after the event `after`, in order.

        Args:
            job_id: the job.
            after: the id of an event.
            limit: the most events.
            most_bytes: the events end before their data have more bytes, but there is at least one.

        Raises:
            JobNotFound: if no job has this id.
        """
        same = and_(rounds.c.job_id == events.c.job_id, rounds.c.round == events.c.round)
        query = select(events, rounds.c.record).select_from(events.outerjoin(rounds, same))
        query = query.where(events.c.job_id == job_id, events.c.id > after).order_by(events.c.id).limit(limit)
        with self._engine.connect() as connection:
            length = count_bytes(events.c.data) + count_bytes(rounds.c.record)
            query = limit_bytes(connection, query, length, most_bytes)
            found = connection.execute(query).mappings().all()
            if not found:
                read_job_row(connection, job_id)
        return tuple(event_of(row) for row in found)

    def curves(self, job_ids: Iterable[str], metric: str, points: int) -> Iterator[Curve]:
        """Yield a metric of several jobs at evenly spaced rounds; see `jobs.store.curves.read_curves`."""
        return read_curves(self._engine, job_ids, metric, points)
