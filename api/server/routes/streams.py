"""What goes on for as long as a job does: its events and its log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from api.sdk.calls import POSITION
from api.server.dependencies import JobId, LastEvent, ServiceOf, StreamsOf
from api.server.errors import describe_problems
from api.server.job_log import follow_file, read_from_position, read_last_lines
from api.server.limits import LimitedStream
from jobs.store.states import FINAL

router = APIRouter(tags=["jobs"])

EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"
FURTHEST = 2**53
"""The largest position that JSON and every file system can name."""

EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "1, 2, 3, ... within the job, without gaps."},
        "event": {"enum": ["state", "round", "warning"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "Of a round its record; of a state `state`, `previous`, `reason`, `message`, "
            "`terminal` and `at`; of a warning `message` and `at`, and `terminal` where the job was deleted.",
        },
    },
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events of the types state, round and warning; the schema is that of one event.",
        "content": {EVENT_STREAM: {"schema": EVENT}},
    },
    204: {"description": "The job has ended, and there is nothing after that event."},
}
POSITION_HEADER = {
    "description": "Where in the log the first byte of this answer stands.",
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
    """Follow a job by Server-Sent Events, past ones first; the last one says `terminal: true`."""
    job = service.store.get(job_id)
    if job.state in FINAL and after > 0:
        # This event and the next: what is no event of the job means from the start.
        known = [event.id for event in service.store.events(job_id, after - 1, 2)]
        if known == [after]:
            return Response(status_code=204)
    return LimitedStream(service.event_hub.stream_events(job_id, after), EVENT_STREAM, streams)


@router.get(
    "/jobs/{job_id}/logs",
    response_class=StreamingResponse,
    responses=describe_problems(404, 422, 429, also=LINES),
)
def read_log(
    job_id: JobId,
    service: ServiceOf,
    streams: StreamsOf,
    tail: Annotated[int, Query(ge=0, le=100_000, description="How many of the last lines.")] = 500,
    follow: Annotated[bool, Query(description="Go on until the job has ended.")] = False,
    begin: Annotated[
        int | None,
        Query(alias="from", ge=0, le=FURTHEST, description="Not the last lines, but all from this byte on."),
    ] = None,
) -> Response:
    """Read the job's own log, which is kept when the cluster is gone; empty until the job has started.

    A followed log ends with the job, or when the service stops: whoever has counted the bytes goes on with
    `from`, which is `Log-Position` of the first answer and the bytes that came.
    """
    service.store.get(job_id)
    path = service.settings.log_path(job_id)
    lines, position = read_last_lines(path, tail) if begin is None else read_from_position(path, begin)
    headers = {POSITION: str(position - len(lines))}
    if not follow:
        return Response(lines, headers=headers, media_type=PLAIN)

    async def has_ended() -> bool:
        return service.event_hub.closing or await service.ended_jobs.has_ended(job_id)

    stream = LimitedStream(_log([lines], follow_file(path, position, has_ended)), PLAIN, streams)
    stream.headers.update(headers)
    return stream


async def _log(first: list[bytes], more: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Give the first piece, which is let go of once it is sent, and the others after it."""
    yield first.pop()
    # Whoever sends keeps a piece until the next one comes: 16 MiB for as long as a log is quiet.
    yield b""
    async for block in more:
        yield block
