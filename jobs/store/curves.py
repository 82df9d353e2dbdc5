"""Metric curves of many jobs at once, with a few points each, for a list of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, func, select

from jobs.store.tables import jobs, rounds, totals


class Curve(NamedTuple):
    """The curve of a metric of one job.

    Attributes:
        job_id: the job.
        rounds: the rounds of the points, rising.
        values: the metric after these rounds.
        bytes: simulated traffic of the job so far, down and up.
        seconds: the sum of the rounds' seconds so far.
    """

    job_id: str
    rounds: list[int]
    values: list[float]
    bytes: int
    seconds: float


def read_curves(engine: Engine, job_ids: Iterable[str], metric: str, points: int) -> Iterator[Curve]:
    """Read a metric of several jobs, one after the other, at evenly spaced rounds and at the last round.

    The query looks up single rounds by their key: a job of 2,000 rounds costs as much as a job of 40.

    Args:
        engine: of the store.
        job_ids: the jobs, each read once; unknown jobs are left out.
        metric: its name in the records.
        points: the approximate number of points of each job.
    """
    every = jobs.c.spec["evaluation"]["every"].as_integer()
    sent = func.coalesce(totals.c.bytes_down + totals.c.bytes_up, 0).label("bytes")
    taken = func.coalesce(totals.c.seconds_total, 0.0).label("seconds")
    ids = list(dict.fromkeys(job_ids))
    query = select(jobs.c.id, jobs.c.rounds_done, every.label("every"), sent, taken)
    query = query.outerjoin(totals, totals.c.job_id == jobs.c.id).where(jobs.c.id.in_(ids))
    with engine.connect() as connection:
        found = {row["id"]: row for row in connection.execute(query).mappings()}
        for job_id in ids:
            if job_id in found:
                yield _read_curve(connection, found[job_id], metric, points)


def _read_curve(connection: Connection, job: RowMapping, metric: str, points: int) -> Curve:
    done, every = job["rounds_done"], job["every"] or 1
    # The scored rounds are the multiples of `every`, and the last round.
    step = every * max(1, -(-done // (every * points)))
    numbers = [*range(step, done, step), done]
    value = rounds.c.record["metrics"][metric].as_float()
    query = select(rounds.c.round, value).where(rounds.c.job_id == job["id"], rounds.c.round.in_(numbers))
    scored = [row for row in connection.execute(query.order_by(rounds.c.round)) if row[1] is not None]
    numbers, values = [row[0] for row in scored], [row[1] for row in scored]
    return Curve(job["id"], numbers, values, int(job["bytes"]), float(job["seconds"]))
