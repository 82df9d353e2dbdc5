"""Artifacts: the files of a job, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from api.reports.json_report import generate_report_lines
from api.server.dependencies import JobId, ServiceOf
from api.server.errors import describe_problems
from api.server.stored_rounds import read_all_rounds
from jobs.run.artifacts import ARTIFACTS, REPORT, SPEC, list_stored_artifacts, open_artifact
from jobs.spec.spec_text import dump_spec

router = APIRouter(tags=["jobs"])

ArtifactName = Annotated[
    str, Path(min_length=1, max_length=100, description="A name from the list of artifacts.")
]
BINARY = {"type": "string", "format": "binary"}
CONTENT_TYPES: dict[str, dict[str, Any]] = {
    kind.media_type: {"schema": BINARY if kind.media_type.endswith("octet-stream") else {"type": "object"}}
    for kind in ARTIFACTS.values()
}
FILES: dict[int | str, dict[str, Any]] = {200: {"description": "The file.", "content": CONTENT_TYPES}}


class ArtifactEntry(BaseModel):
    """A file of a job."""

    name: str
    media_type: str
    description: str
    bytes: int | None = Field(description="Size in bytes; null for a file that is generated on request.")


class ArtifactList(BaseModel):
    """The artifacts that a job has now."""

    artifacts: list[ArtifactEntry]


@router.get("/jobs/{job_id}/artifacts", responses=describe_problems(404, 422, 503))
def list_artifacts(job_id: JobId, service: ServiceOf) -> ArtifactList:
    """List the files of a job; model and partition exist after the job has succeeded."""
    service.store.get(job_id)
    sizes: dict[str, int | None] = {
        SPEC: None,
        REPORT: None,
        **list_stored_artifacts(service.settings, job_id),
    }
    found = [
        ArtifactEntry(name=name, **kind._asdict(), bytes=sizes[name])
        for name, kind in ARTIFACTS.items()
        if name in sizes
    ]
    return ArtifactList(artifacts=found)


@router.get(
    "/jobs/{job_id}/artifacts/{name}",
    response_class=StreamingResponse,
    responses=describe_problems(404, 422, 503, also=FILES),
)
def get_artifact(job_id: JobId, name: ArtifactName, service: ServiceOf) -> Response:
    """Download a file. Models and partitions are plain arrays (safetensors) without code."""
    job = service.store.get(job_id)
    headers = {"Content-Disposition": f'attachment; filename="{job_id}-{name}"'}
    if name == SPEC:
        return _file(name, [dump_spec(job.spec)], headers)
    if name == REPORT:
        records = read_all_rounds(service.store, job.id, 0)
        return _file(name, generate_report_lines(job, records), headers)
    size, pieces = open_artifact(service.settings, job_id, name)
    return _file(name, pieces, headers | {"Content-Length": str(size)})


def _file(name: str, pieces: Iterable[str | bytes], headers: dict[str, str]) -> Response:
    return StreamingResponse(pieces, headers=headers, media_type=ARTIFACTS[name].media_type)
