"""The class map of a job: examples of each class by client."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from api.server.dependencies import JobId, ServiceOf
from api.server.errors import describe_problems

router = APIRouter(tags=["jobs"])


class ClassMap(BaseModel):
    """Examples of each class by client."""

    classes: list[str] = Field(description="Class names.")
    counts: list[list[int]] = Field(description="Examples by client and class; only the first clients.")
    distances: list[float] = Field(
        description="Earth mover's distance between the class distribution of each client and of all clients."
    )
    clients: int = Field(description="Number of clients; `counts` has only the first ones.")
    names: list[str] = Field(
        default=[], description="Names of the first clients, such as hospitals; [] without names."
    )
    attackers: list[int] = Field(default=[], description="Malicious clients; only among the first clients.")
    notes: list[str] = Field(description="Notes on the partition, such as repaired clients.")


@router.get("/jobs/{job_id}/class-map", response_model=ClassMap, responses=describe_problems(404, 422, 503))
async def get_class_map(request: Request, job_id: JobId, service: ServiceOf) -> Response:
    """Get the class map of a job. The first request reads the data set; the result is stored with the job."""
    job = await run_in_threadpool(service.store.get, job_id)
    found = await service.make_class_map(job, request.is_disconnected)
    text = await run_in_threadpool(lambda: ClassMap.model_validate(found).model_dump_json())
    return Response(text, media_type="application/json")
