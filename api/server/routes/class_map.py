"""Who holds what in a job: examples of each class by client."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from api.server.dependencies import JobId, ServiceOf
from api.server.errors import describe_problems

router = APIRouter(tags=["jobs"])


class ClassMap(BaseModel):
    """How many examples of each class each client holds."""

    classes: list[str] = Field(description="Their names.")
    counts: list[list[int]] = Field(description="Examples by client and class, of the first clients.")
    distances: list[float] = Field(
        description="Earth mover's distance of each client's mix of classes to that of all."
    )
    clients: int = Field(description="How many there are; those beyond `counts` are left out.")
    notes: list[str] = Field(description="What had to be done to make the partition.")


@router.get("/jobs/{job_id}/class-map", responses=describe_problems(404, 422, 503))
async def get_class_map(job_id: JobId, service: ServiceOf) -> ClassMap:
    """Look at a job's partition. Made when first asked for, which reads the data set; kept with the job."""
    job = await run_in_threadpool(service.store.get, job_id)
    return ClassMap.model_validate(await service.class_map_lookups.run_work(service.make_class_map, job))
