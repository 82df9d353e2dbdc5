"""Streams of a job: its events and its log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from api.sdk.calls import POSITION
from api.server.dependencies import JobId, LastEvent, ServiceOf, StreamsOf, make_event_id_error
from api.server.errors import describe_problems
from api.server.job_log import find_last_lines, find_piece, follow_file, read_piece
from api.server.limits import LimitedStream
from jobs.store.states import FINAL

router = APIRouter(tags=["jobs"])

EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"
FURTHEST = 2**53
"""Largest position that JSON numbers can represent exactly."""

EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "1, 2, 3, ... within the job, without gaps."},
        "event": {"enum": ["state", "round", "warning"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "Round: its record. State: `state`, `previous`, `reason`, `message`, "
            "`terminal` and `at`. Warning: `message` and `at`, and `terminal` if the job was deleted.",
        },
    },
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events of the types state, round and warning; the schema describes one event.",
        "content": {EVENT_STREAM: {"schema": EVENT}},
    },
    204: {"description": "The job has ended, and no event follows."},
}
POSITION_HEADER = {
    "description": "Position of the first byte of this answer in the log.",
    "schema": {"type": "integer"},
}
LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {PLAIN: {"schema": {"type": "string"}}}, "headers": {POSITION: POSITION_HEADER}}
}


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses=describe_problems(404, 422, 429, also=EVENTS),
)
def follow_events(job_id: JobId, service: ServiceOf, streams: StreamsOf, after: LastEvent) -> Response:
    """Stream the events of a job (Server-Sent Events), past events first; the last has `terminal: true`."""
    job = service.store.get(job_id)
    if after > 0:
        this_and_next = [event.id for event in service.store.events(job_id, after - 1, 2)]
        if after not in this_and_next:
            # Such as after the store was restored from a backup. From the first event on, a client would
            # take every event twice; without them, it would miss those that get the same ids again.
            raise make_event_id_error(str(after))
        if job.state in FINAL and this_and_next == [after]:
            return Response(status_code=204)
    events = service.event_hub.stream_events(job_id, after)
    return LimitedStream(events, EVENT_STREAM, streams, "GET /jobs/ID/rounds")


@router.get(
    "/jobs/{job_id}/logs",
    response_class=StreamingResponse,
    responses=describe_problems(404, 422, 429, also=LINES),
)
def read_log(
    job_id: JobId,
    service: ServiceOf,
    streams: StreamsOf,
    tail: Annotated[int, Query(ge=0, le=100_000, description="Number of lines, counted from the end.")] = 500,
    follow: Annotated[bool, Query(description="Keep streaming until the job ends.")] = False,
    begin: Annotated[
        int | None,
        Query(alias="from", ge=0, le=FURTHEST, description="Start at this byte instead of the last lines."),
    ] = None,
) -> Response:
    """Read the log of a job; empty until the job has started.

    A followed log ends with the job, or when the service stops. To continue, set `from` to the `Log-Position`
    of the first answer plus the number of received bytes.
    """
    service.store.get(job_id)
    path = service.settings.log_path(job_id)
    first, end = find_last_lines(path, tail) if begin is None else find_piece(path, begin)
    headers = {POSITION: str(first)}
    if not follow:
        return StreamingResponse(read_piece(path, first, end), headers=headers, media_type=PLAIN)

    async def has_ended() -> bool:
        return service.event_hub.closing or await service.ended_jobs.has_ended(job_id)

    lines = follow_file(path, first, has_ended)
    stream = LimitedStream(lines, PLAIN, streams, "GET /jobs/ID/logs without follow")
    stream.headers.update(headers)
    return stream
