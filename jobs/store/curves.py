"""The metric curve of a job with a few points, for a list of jobs."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Engine, func, select

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


def read_curve(engine: Engine, job_id: str, metric: str, points: int) -> Curve | None:
    """Read a metric of a job, at evenly spaced rounds and at the last round; None for an unknown job.

    The query looks up single rounds by their key: a job of 2,000 rounds costs as much as a job of 40.

    Args:
        engine: of the store.
        job_id: the job.
        metric: its name in the records.
        points: the approximate number of points.
    """
    every_round = jobs.c.spec["evaluation"]["every"].as_integer()
    sent = func.coalesce(totals.c.bytes_down + totals.c.bytes_up, 0)
    taken = func.coalesce(totals.c.seconds_total, 0.0)
    query = select(jobs.c.rounds_done, every_round, sent, taken)
    query = query.outerjoin(totals, totals.c.job_id == jobs.c.id).where(jobs.c.id == job_id)
    with engine.connect() as connection:
        found = connection.execute(query).first()
        if found is None:
            return None
        done, every, sent_bytes, seconds = found
        # The scored rounds are the multiples of `every`, and the last round.
        every = every or 1
        step = every * max(1, -(-done // (every * points)))
        numbers = [*range(step, done, step), done]
        value = rounds.c.record["metrics"][metric].as_float()
        chosen = select(rounds.c.round, value).where(rounds.c.job_id == job_id, rounds.c.round.in_(numbers))
        scored = [row for row in connection.execute(chosen.order_by(rounds.c.round)) if row[1] is not None]
    numbers, values = [row[0] for row in scored], [row[1] for row in scored]
    return Curve(job_id, numbers, values, int(sent_bytes), float(seconds))
