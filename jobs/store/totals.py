"""Sums over all jobs, for `/metrics`.

Every job has a row of sums. The transaction that writes a round also adds to this row, so that the sums do
not depend on restarts of the API. The row outlives its job: a counter never falls.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, bindparam, case, func, insert, select, update

from jobs.store.records import RoundRecord
from jobs.store.states import JobState
from jobs.store.tables import events, jobs, totals

SUMS = tuple(column.name for column in totals.columns if column.name not in ("job_id", "queue_seconds"))
"""The columns that grow with every round."""

_ADD = (
    update(totals)
    .where(totals.c.job_id == bindparam("job"))
    .values({name: totals.c[name] + bindparam(f"more_{name}") for name in SUMS})
)
"""Built once: for each round, it would take longer to build than to run."""

WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""Seconds in the queue: the upper bounds of the histogram."""


class Totals(NamedTuple):
    """Figures of all jobs together.

    Attributes:
        states: how many jobs are in each state, the empty ones included.
        sums: of all rounds of all jobs, by column of the table.
        waits: for each of `WAITS`, the jobs that left the queue within so many seconds.
        waited: the jobs that left the queue.
        wait_seconds: the sum of their seconds in the queue.
        oldest_seconds: how long the oldest job has been in the queue; 0 if the queue is empty.
    """

    states: dict[JobState, int]
    sums: dict[str, float]
    waits: tuple[int, ...]
    waited: int
    wait_seconds: float
    oldest_seconds: float


def start_totals(connection: Connection, row: RowMapping, now: datetime) -> None:
    """Store how long a locked job was in the queue, when it first leaves the queue."""
    job_id, waited = row["id"], {"queue_seconds": (now - row["created_at"]).total_seconds()}
    if connection.execute(update(totals).where(totals.c.job_id == job_id).values(waited)).rowcount == 0:
        connection.execute(insert(totals), dict.fromkeys(SUMS, 0) | waited | {"job_id": job_id})


def add_to_totals(connection: Connection, job_id: str, record: RoundRecord) -> None:
    """Add a new round of a locked job to its sums."""
    seconds = record.seconds
    more = {
        "rounds": 1,
        "client_updates": record.cohort - len(record.failed),
        "client_failures": len(record.failed),
        "seconds_survey": seconds.survey,
        "seconds_train": seconds.train,
        "seconds_server": seconds.server + seconds.learn,
        "seconds_evaluate": seconds.evaluate + seconds.personal,
        "seconds_total": seconds.total,
        "bytes_down": record.bytes.down,
        "bytes_up": record.bytes.up,
        "actor_restarts": record.engine.restarts,
    }
    values = {f"more_{name}": amount for name, amount in more.items()}
    if connection.execute(_ADD, values | {"job": job_id}).rowcount == 0:
        connection.execute(insert(totals), more | {"job_id": job_id})


def read_totals(engine: Engine) -> Totals:
    """Sum over all jobs: the queries read one small row per job, whatever the number of rounds."""
    by_state = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    # A resumed job waits since it came back into the queue, not since it was created.
    queued = select(func.max(events.c.at).label("since")).join(jobs, jobs.c.id == events.c.job_id)
    queued = queued.where(jobs.c.state == JobState.QUEUED.value, events.c.type == "state").group_by(jobs.c.id)
    oldest = select(func.min(queued.subquery().c.since))
    waited = totals.c.queue_seconds
    sums = [func.coalesce(func.sum(totals.c[name]), 0) for name in SUMS]
    classes = [func.coalesce(func.sum(case((waited <= most, 1), else_=0)), 0) for most in WAITS]
    both = select(*sums, *classes, func.count(waited), func.coalesce(func.sum(waited), 0.0))
    with engine.connect() as connection:
        states: dict[str, int] = {row[0]: row[1] for row in connection.execute(by_state)}
        queued_since: datetime | None = connection.execute(oldest).scalar_one()
        figures = [float(figure) for figure in connection.execute(both).one()]
    age = (datetime.now(UTC) - queued_since).total_seconds() if queued_since else 0.0
    return Totals(
        states={state: states.get(state.value, 0) for state in JobState},
        sums=dict(zip(SUMS, figures, strict=False)),
        waits=tuple(int(figure) for figure in figures[len(SUMS) : len(SUMS) + len(WAITS)]),
        waited=int(figures[-2]),
        wait_seconds=figures[-1],
        oldest_seconds=max(0.0, age),
    )
