"""Short curves of several jobs, for lists."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints

from api.server.dependencies import StoreOf
from api.server.errors import describe_problems

router = APIRouter(tags=["jobs"])

MOST_JOBS = 100

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,32}$")]
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


@router.get("/curves", responses=describe_problems(422))
def list_curves(
    store: StoreOf,
    job: Annotated[list[Id], Query(min_length=1, max_length=MOST_JOBS, description="Ids of jobs.")],
    metric: Annotated[
        Metric, Query(description="Name of the metric in the round records.")
    ] = "global_accuracy",
    points: Annotated[int, Query(ge=2, le=500, description="Approximate number of points of each job.")] = 40,
) -> Curves:
    """Read a metric of several jobs at evenly spaced rounds."""
    found = store.curves(job, metric, points)
    return Curves(curves=[JobCurve(**curve._asdict()) for curve in found])
