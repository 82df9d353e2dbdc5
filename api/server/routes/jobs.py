"""Routes to submit, clone, read, cancel, resume and delete jobs, and to read their rounds."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StringConstraints
from starlette.concurrency import run_in_threadpool

from api.sdk.round_table import format_csv, list_columns
from api.server.dependencies import (
    CloneRequest,
    CloningBody,
    JobId,
    ResumeBody,
    ServiceOf,
    SubmissionBody,
    SubmissionRequest,
)
from api.server.errors import describe_problems
from api.server.openapi import CLONING_BODY, RESUME_BODY, SUBMISSION_BODY
from api.server.service import Service
from api.server.slow_lookups import Interest
from api.server.stored_rounds import (
    LARGE_PAGE_BYTES,
    SMALL_PAGE_BYTES,
    check_record_bytes,
    read_all_rounds,
)
from jobs.spec.cloning import clone_spec
from jobs.spec.grid import FIELDS_WITHOUT_EFFECT
from jobs.spec.submission import MAX_LABELS
from jobs.spec.sweep import GROUP
from jobs.store.job_store import JobStore
from jobs.store.records import Job, JobPage, RoundRecord
from jobs.store.states import JobState

router = APIRouter(tags=["jobs"])

logger = logging.getLogger("fedsim.api")

MANY_JOBS = 100
MANY_ROUNDS = 1000
"""Larger pages may take some megabytes of memory: few of them are read at once."""

MOST_CSV_BYTES = 200_000_000
"""Bytes of the records of one table as CSV, which keeps none of them."""

IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="Submissions with the same key and body are one job."),
]
Label = Annotated[str, StringConstraints(max_length=300)]
OrderBy = Literal["created_at", "-created_at", "name", "-name", "priority", "-priority", "state", "-state"]

REPEATED_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"model": Job, "description": "The same key and body were sent before: the existing job."}
}
AS_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


class RoundPage(BaseModel):
    """A page of the round records of a job."""

    rounds: list[RoundRecord]
    next_after: int | None = Field(description="Value of `after` for the next page; null on the last page.")


@router.post(
    "/jobs",
    status_code=201,
    responses=describe_problems(400, 409, 413, 415, 422, 503, also=REPEATED_ANSWER),
    openapi_extra=SUBMISSION_BODY,
)
async def submit_job(
    request: Request,
    submission: SubmissionBody,
    service: ServiceOf,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Submit a job. A spec that cannot run on this cluster is refused with all its errors."""
    rest: dict[str, Any] = {
        "priority": submission.priority,
        "labels": submission.labels,
        "idempotency_key": idempotency_key,
    }
    spec = await service.spec_lookups.run_work(service.parse_spec, submission.spec)
    # A repeated submission returns the existing job, even if its data or nodes are missing now.
    earlier = await run_in_threadpool(service.store.find_submitted_job, spec, **rest)
    if earlier is None:
        checked = await service.check_spec(spec, request.is_disconnected)
        job, created = await run_in_threadpool(
            service.store.create, checked.spec, message=checked.warning, **rest
        )
    else:
        job, created = earlier, False
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    if not created:
        response.status_code = 200
    service.dispatcher.wake()
    return job


@router.get("/jobs", response_model=JobPage, responses=describe_problems(400, 422, 503))
async def list_jobs(
    request: Request,
    service: ServiceOf,
    state: Annotated[
        list[JobState] | None,
        Query(max_length=10, description="Only jobs in these states."),
    ] = None,
    label: Annotated[
        list[Label] | None,
        Query(
            max_length=MAX_LABELS, description="Only jobs with all of these labels: `name` or `name=value`."
        ),
    ] = None,
    algorithm: Annotated[
        str | None, Query(max_length=100, description="Only jobs with this algorithm.")
    ] = None,
    search: Annotated[
        str | None, Query(max_length=100, description="Only jobs with this in their name, id or algorithm.")
    ] = None,
    order_by: Annotated[
        OrderBy,
        Query(
            description="Sort by this field; `-`: in descending order. `-priority` is the order of the queue."
        ),
    ] = "-created_at",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    page_token: Annotated[
        str | None, Query(max_length=1000, description="`next_page_token` of the previous page.")
    ] = None,
) -> Response:
    """List jobs, page by page. A page of very large specs has fewer jobs than `limit`."""

    # The text is made in the thread, too: it has megabytes, and would keep the event loop busy.
    def read() -> str:
        page = service.store.list(
            state,
            label,
            order_by,
            limit,
            page_token=page_token,
            algorithm=algorithm,
            search=search,
            most_bytes=LARGE_PAGE_BYTES if is_large else SMALL_PAGE_BYTES,
        )
        return page.model_dump_json()

    is_large = limit > MANY_JOBS
    if is_large:
        text = await service.round_lookups.run_while_wanted(request.is_disconnected, lambda _: read())
    else:
        text = await run_in_threadpool(read)
    return Response(text, media_type="application/json")


@router.get("/jobs/{job_id}", responses=describe_problems(404, 422))
def get_job(job_id: JobId, service: ServiceOf) -> Job:
    """Get a job."""
    return service.store.get(job_id)


@router.delete("/jobs/{job_id}", status_code=204, responses=describe_problems(404, 409, 422))
def delete_job(job_id: JobId, service: ServiceOf) -> None:
    """Delete a job that has ended, with its rounds and files."""
    service.store.delete(job_id)
    if service.settings.storage is not None:
        # Imported late, because the drivers of object stores import slowly.
        from jobs.run.artifacts import remove_files

        for left in remove_files(service.settings, job_id):
            logger.error("job %s was deleted, but some of its files could not be deleted: %s", job_id, left)
    shutil.rmtree(service.settings.job_dir(job_id), onerror=_log_leftover)


def _log_leftover(_: Any, path: str, __: Any) -> None:
    if Path(path).exists():
        logger.error("a job was deleted, but %s could not be deleted", path, exc_info=True)


@router.post("/jobs/{job_id}/cancel", responses=describe_problems(404, 422))
def cancel_job(job_id: JobId, service: ServiceOf) -> Job:
    """Cancel a job. Cancelling again, or after the job has ended, changes nothing."""
    job = service.store.request_cancel(job_id)
    service.dispatcher.wake()
    return job


@router.post(
    "/jobs/{job_id}/resume",
    responses=describe_problems(400, 404, 409, 413, 415, 422, 503),
    openapi_extra=RESUME_BODY,
)
async def resume_job(request: Request, job_id: JobId, changes: ResumeBody, service: ServiceOf) -> Job:
    """Continue a failed or cancelled job from its last checkpoint, or give an ended job more rounds.

    The job is queued again.
    """
    job = await run_in_threadpool(service.store.get, job_id)
    if changes.rounds is None:
        # The operator may have forbidden since what the job needs, such as code.
        await service.spec_lookups.run_work(service.parse_spec, job.spec)
    else:
        spec = await service.spec_lookups.run_work(service.parse_rounds, job, changes.rounds)
        await service.check_spec(spec, request.is_disconnected)
        await service.spec_lookups.run_work(service.check_rounds, job, spec, changes.rounds)
    job = await run_in_threadpool(service.store.resume, job_id, changes.rounds)
    service.dispatcher.wake()
    return job


@router.post(
    "/jobs/{job_id}/clone",
    status_code=201,
    responses=describe_problems(400, 404, 409, 413, 415, 422, 503, also=REPEATED_ANSWER),
    openapi_extra=CLONING_BODY,
)
async def clone_job(
    request: Request,
    job_id: JobId,
    changes: CloningBody,
    service: ServiceOf,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Submit a copy of a job in any state as a new job; the new job starts at round 1."""
    submission = await run_in_threadpool(_make_submission, job_id, changes, service)
    return await submit_job(request, submission, service, response, idempotency_key)


def _make_submission(job_id: str, changes: CloneRequest, service: Service) -> SubmissionRequest:
    job = service.store.get(job_id)
    spec, labels = job.spec, job.labels
    is_changed = any(path.split(".")[0] not in FIELDS_WITHOUT_EFFECT for path in changes.set)
    if is_changed and {GROUP, "seed"} <= labels.keys():
        # With other fields it is no run of the sweep, whose labels and name say what the fields were.
        spec, labels = {name: value for name, value in spec.items() if name != "name"}, {}
    return SubmissionRequest(
        spec=clone_spec(spec, changes.set),
        priority=job.priority if changes.priority is None else changes.priority,
        labels=labels if changes.labels is None else changes.labels,
    )


@router.get(
    "/jobs/{job_id}/rounds",
    response_model=RoundPage,
    responses=describe_problems(404, 422, 503, also=AS_CSV),
)
async def list_rounds(
    request: Request,
    job_id: JobId,
    service: ServiceOf,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only rounds above this number.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="Maximum number of rounds. CSV always has all rounds.")
    ] = 1000,
) -> Response:
    """List the round records of a job; fewer than `limit` if they are very large.

    With `Accept: text/csv`: a table of all rounds.
    """
    store = service.store
    if "text/csv" in request.headers.get("accept", ""):
        job = await run_in_threadpool(store.get, job_id)

        def read_names(interest: Interest) -> list[str]:
            hint = "read them page by page, as JSON"
            check_record_bytes(store, [job], "job_id", job_id, hint, interest, most=MOST_CSV_BYTES)
            return list_columns(read_all_rounds(store, job_id, after, interest))

        headers = {"Content-Disposition": f'attachment; filename="{job_id}.csv"'}
        # Read twice instead of kept: the first line names all columns, and a metric may start late.
        names = await service.round_lookups.run_while_wanted(request.is_disconnected, read_names)
        lines = format_csv(names, read_all_rounds(store, job_id, after))
        return StreamingResponse(lines, headers=headers, media_type="text/csv")
    lookups = service.round_lookups if limit > MANY_ROUNDS else service.page_lookups
    text = await lookups.run_while_wanted(
        request.is_disconnected, lambda _: _read_page(store, job_id, after, limit)
    )
    return Response(text, media_type="application/json")


def _read_page(store: JobStore, job_id: str, after: int, limit: int) -> str:
    done = store.get(job_id).rounds_done
    most_bytes = LARGE_PAGE_BYTES if limit > MANY_ROUNDS else SMALL_PAGE_BYTES
    page = list(store.rounds(job_id, after, limit, most_bytes))
    found = RoundPage(rounds=page, next_after=page[-1].round if page and page[-1].round < done else None)
    return found.model_dump_json()
