"""Values that the algorithm of a job reports: curves, changes, latest values and clusters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, JsonValue

from api.reports.method_curves import (
    find_clusters,
    find_method_changes,
    find_method_curves,
    flatten_values,
    format_name,
)
from api.server.dependencies import JobId, ServiceOf
from api.server.errors import describe_problems
from api.server.slow_lookups import Interest
from api.server.stored_rounds import check_record_bytes, read_all_rounds
from jobs.run.class_map import MAX_CLIENTS_SHOWN
from jobs.store.job_store import JobStore

router = APIRouter(tags=["jobs"])

Title = Annotated[str, Field(description="Name for people, such as `frozen clients`.")]


class MethodLine(BaseModel):
    """One line of a curve."""

    title: Title
    values: list[float | None] = Field(description="One value for each round; null if the round has none.")


class MethodCurve(BaseModel):
    """A value that changes from round to round, as one line or several."""

    name: str = Field(description="Name in the round records, such as `frozen_clients`.")
    title: Title
    lines: list[MethodLine]


class MethodChangeEntry(BaseModel):
    """Everything that changed in one round."""

    round: int
    text: str = Field(description="Such as `phase: 2 of 2; frozen: none`.")
    lasting: str = Field(description="The part of `text` that stays true in later rounds; may be empty.")


class LatestValue(BaseModel):
    """A value of the last round."""

    title: Title
    value: JsonValue


class MethodCurves(BaseModel):
    """Values that the algorithm of a job reports, and how to draw them."""

    rounds: list[int] = Field(description="Numbers of the rounds.")
    curves: list[MethodCurve]
    changes: list[MethodChangeEntry] = Field(
        description="Draw an entry with a `lasting` text as a line of full height, and any other as a tick."
    )
    values: list[LatestValue]
    clusters: list[int] | None = Field(description="Cluster of each client; null without clusters.")


@router.get(
    "/jobs/{job_id}/method-curves", response_model=MethodCurves, responses=describe_problems(404, 422, 503)
)
async def get_method_curves(request: Request, job_id: JobId, service: ServiceOf) -> Response:
    """Get the values that the algorithm of a job reports: curves, changes, latest values, clusters."""

    # The text is made in the thread, too: of a long job it has megabytes.
    def read(interest: Interest) -> str:
        return _read_method_curves(service.store, job_id, interest).model_dump_json()

    text = await service.round_lookups.run_while_wanted(request.is_disconnected, read)
    return Response(text, media_type="application/json")


def _read_method_curves(store: JobStore, job_id: str, interest: Interest) -> MethodCurves:
    job = store.get(job_id)
    hint = f"read them page by page: /api/v1/jobs/{job_id}/rounds"
    check_record_bytes(store, [job], "job_id", job_id, hint, interest)
    records = list(read_all_rounds(store, job.id, 0, interest))
    curves = [
        MethodCurve(
            name=name,
            title=format_name(name),
            lines=[MethodLine(title=title, values=values) for title, values in lines],
        )
        for name, lines in find_method_curves(records).items()
    ]
    changes = [
        MethodChangeEntry(round=records[place].round, text=text, lasting=lasting)
        for place, text, lasting in find_method_changes(records)
    ]
    latest = dict(flatten_values(records[-1].method)) if records else {}
    return MethodCurves(
        rounds=[record.round for record in records],
        curves=curves,
        changes=changes,
        values=[LatestValue(title=format_name(n), value=v) for n, v in latest.items() if v is not None],
        clusters=find_clusters(records, min(job.spec["clients"]["total"], MAX_CLIENTS_SHOWN)),
    )
