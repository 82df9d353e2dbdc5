"""Short curves of several jobs, for lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints

from api.server.dependencies import ServiceOf
from api.server.errors import describe_problems
from api.server.slow_lookups import Interest
from jobs.settings import JOB_ID
from jobs.store.job_store import JobStore

router = APIRouter(tags=["jobs"])

MOST_JOBS = 100
MOST_ANSWERED_POINTS = 10_000
"""Points of one answer: the database reads a whole record for each."""

Id = Annotated[str, StringConstraints(pattern=f"^{JOB_ID.pattern}$")]
Metric = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class JobCurve(BaseModel):
    """A metric of one job, at some rounds."""

    job_id: str
    rounds: list[int] = Field(description="Rounds of the values, ascending.")
    values: list[float]
    bytes: int = Field(description="Simulated traffic so far, in both directions.")
    seconds: float = Field(description="Computing time so far, in seconds.")


class Curves(BaseModel):
    """A metric of several jobs; jobs that do not exist are left out."""

    curves: list[JobCurve]


@router.get("/curves", response_model=Curves, responses=describe_problems(422, 503))
async def list_curves(
    request: Request,
    service: ServiceOf,
    job: Annotated[list[Id], Query(min_length=1, max_length=MOST_JOBS, description="Ids of jobs.")],
    metric: Annotated[
        Metric, Query(description="Name of the metric in the round records.")
    ] = "global_accuracy",
    points: Annotated[
        int,
        Query(ge=2, le=500, description="Approximate number of points of each job. All jobs share 10,000."),
    ] = 40,
) -> Response:
    """Read a metric of several jobs at evenly spaced rounds; each job once."""

    # The text is made here, too: it may have 20,000 numbers.
    def read(interest: Interest) -> str:
        found = read_curves(
            service.store, job, metric, min(points, MOST_ANSWERED_POINTS // len(job)), interest
        )
        return Curves(curves=list(found)).model_dump_json()

    text = await service.curve_lookups.run_while_wanted(request.is_disconnected, read)
    return Response(text, media_type="application/json")


def read_curves(
    store: JobStore, job_ids: Iterable[str], metric: str, points: int, interest: Interest
) -> Iterator[JobCurve]:
    """Yield the curve of each job that exists.

    Raises:
        ServiceBusy: nobody is interested any more.
    """
    for curve in store.curves(job_ids, metric, points):
        interest.check()
        yield JobCurve(**curve._asdict())
