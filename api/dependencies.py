"""What routes are given: the service's parts, and the parameters and bodies that several of them read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, Strict, StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool

from api.limits import Streams
from api.service import Service
from jobs.settings import Settings
from jobs.spec import parse_text
from jobs.store import JobStore

SUBMISSION_TYPES = (
    "application/json",
    "application/yaml",
    "application/x-yaml",
    "text/yaml",
    "text/x-yaml",
)

MAX_FIELDS = 200
"""How many fields of a clone's spec may be set."""

LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
LabelValue = Annotated[str, StringConstraints(max_length=200)]


class Submission(BaseModel):
    """A job to queue: the body of `POST /jobs`, as JSON or as YAML."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any] = Field(description="The spec; `GET /schema` has its JSON schema.")
    priority: Annotated[int, Strict()] = Field(
        default=0, ge=-1000, le=1000, description="Higher ones leave the queue first."
    )
    labels: dict[LabelName, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Names and values to find the job by."
    )


class Cloning(BaseModel):
    """What a clone has of its own: the body of `POST /jobs/{id}/clone`; the rest is the first job's."""

    model_config = ConfigDict(extra="forbid")

    set: dict[str, JsonValue] = Field(
        default_factory=dict,
        max_length=MAX_FIELDS,
        description="Fields of the spec to set on top, by dotted path.",
    )
    priority: Annotated[int, Strict()] | None = Field(
        default=None, ge=-1000, le=1000, description="By default the first job's."
    )
    labels: dict[LabelName, LabelValue] | None = Field(
        default=None, max_length=32, description="In place of the first job's."
    )


def service(request: Request) -> Service:
    """Give the running service."""
    found: Service = request.app.state.service
    return found


def store(request: Request) -> JobStore:
    """Give the store."""
    return service(request).store


def streams(request: Request) -> Streams:
    """Give the count of open streams."""
    found: Streams = request.app.state.streams
    return found


def settings(request: Request) -> Settings:
    """Give the settings."""
    return service(request).settings


async def submission(request: Request) -> Submission:
    """Read a submission from the body, as JSON or YAML.

    Raises:
        HTTPException: the body is of another type (415).
        SpecError: the body cannot be read.
        RequestValidationError: the body is not shaped like a `Submission`.
    """
    # A large YAML text takes seconds to read: not on the event loop.
    return await run_in_threadpool(_read_submission, await _body(request))


async def spec(request: Request) -> Any:
    """Read a spec from the body, as JSON or YAML: plain data, unchecked.

    Raises:
        HTTPException: the body is of another type (415).
        SpecError: the body cannot be read.
    """
    return await run_in_threadpool(_read_text, await _body(request))


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind not in SUBMISSION_TYPES:
        raise HTTPException(415, f"the body is {kind}; send application/json or application/yaml")
    return await request.body()


def _read_text(body: bytes) -> Any:
    try:
        return parse_text(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def _read_submission(body: bytes) -> Submission:
    data = _read_text(body)
    try:
        return Submission.model_validate(data)
    except ValidationError as error:
        faults = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(faults) from None


def last_event(
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that was received; go on after it.")
    ] = None,
) -> int:
    """Read where an event stream is to go on; what is no id of ours means from the start."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0


JobId = Annotated[str, Path(description="The job's id.", min_length=1, max_length=64)]
ServiceOf = Annotated[Service, Depends(service)]
StoreOf = Annotated[JobStore, Depends(store)]
SettingsOf = Annotated[Settings, Depends(settings)]
StreamsOf = Annotated[Streams, Depends(streams)]
SubmissionBody = Annotated[Submission, Depends(submission)]
SpecBody = Annotated[Any, Depends(spec)]
LastEvent = Annotated[int, Depends(last_event)]
