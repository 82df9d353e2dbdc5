"""Dependencies of the routes: parts of the service, and shared parameters and bodies."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, HTTPException, Path, Request
from fastapi.dependencies.models import Dependant
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StringConstraints,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from api.server.limits import OpenStreams
from api.server.request_errors import MAX_NAME_LETTERS, MOST_FAULTS, make_field_error
from api.server.service import Service
from fedsim.errors import FieldError, RequestError
from jobs.spec import MAX_ROUNDS, parse_text
from jobs.spec.error_messages import shorten_value
from jobs.spec.submission import LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, MAX_PRIORITY

SUBMISSION_TYPES = (
    "application/json",
    "application/yaml",
    "application/x-yaml",
    "text/yaml",
    "text/x-yaml",
)

BODY_EXAMPLES = {
    "SubmissionRequest": "a submission is {spec: {...}, priority: 0, labels: {}}",
    "CloneRequest": "a clone is {set: {path: value}, priority: 0, labels: {}}, all of them optional",
    "ResumeRequest": "the body is {rounds: 80}, or empty",
}
"""An example of each body, by the name of its model."""

MAX_KEYS = 50
"""Fields that a body may have: all known fields and some unknown ones, which the answer lists."""

MAX_FIELDS = 200
"""Fields of the spec that a clone may set."""

LAST_ID = 2**31 - 1
"""Largest event id that every database can store."""

LabelName = Annotated[str, StringConstraints(pattern=f"^{LABEL_KEY.pattern}$")]
LabelValue = Annotated[str, StringConstraints(max_length=MAX_LABEL_VALUE)]


def _limit_labels(value: Any) -> Any:
    """Refuse a mapping with too many entries, before pydantic checks each of them."""
    if isinstance(value, dict) and len(value) > MAX_LABELS:
        raise PydanticCustomError("too_many", "are too many", {"count": len(value), "most": MAX_LABELS})
    return value


Labels = Annotated[dict[LabelName, LabelValue], BeforeValidator(_limit_labels), Field(max_length=MAX_LABELS)]


Body = TypeVar("Body", bound=BaseModel)


class SubmissionRequest(BaseModel):
    """A job to queue: the body of `POST /jobs`, as JSON or YAML."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any] = Field(description="The spec; `GET /schema` has its JSON schema.")
    priority: Annotated[int, Strict()] = Field(
        default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Jobs with a higher priority start first."
    )
    labels: Labels = Field(
        default_factory=dict, description="Labels (name and value), to find the job later."
    )


class CloneRequest(BaseModel):
    """Changes of a clone: the body of `POST /jobs/{id}/clone`. Other values are those of the original job.

    A job of a sweep with other fields has neither the sweep's labels nor its name, unless they are given.
    """

    model_config = ConfigDict(extra="forbid")

    set: dict[str, JsonValue] = Field(
        default_factory=dict,
        max_length=MAX_FIELDS,
        description="Fields of the spec to set, by dotted path.",
    )
    priority: Annotated[int, Strict()] | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Default: the priority of the original job.",
    )
    labels: Labels | None = Field(
        default=None,
        description="Replace the labels of the job; those of a sweep are left out if fields change.",
    )


class ResumeRequest(BaseModel):
    """Changes of a resumed job: the body of `POST /jobs/{id}/resume`."""

    model_config = ConfigDict(extra="forbid")

    rounds: Annotated[int, Strict()] | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="New number of rounds, with those before. A job that has SUCCEEDED needs a higher one.",
    )


# A dependency without `async` takes one of the threads that all routes share: readiness would wait for them.
async def get_service(request: Request) -> Service:
    """Return the running service."""
    found: Service = request.app.state.service
    return found


async def get_streams(request: Request) -> OpenStreams:
    """Return the counter of open streams."""
    found: OpenStreams = request.app.state.streams
    return found


async def read_submission(request: Request) -> SubmissionRequest:
    """Read a submission from the body, as JSON or YAML.

    Raises:
        HTTPException: the body is of another type (415).
        SpecError: the body cannot be read.
        RequestError: the body is not shaped like a `SubmissionRequest`.
    """
    return await _read_body(request, SubmissionRequest)


async def read_clone_request(request: Request) -> CloneRequest:
    """Read the changes of a clone from the body, as JSON or YAML; an empty body changes nothing.

    Raises:
        HTTPException, SpecError, RequestError: as `read_submission`.
    """
    return await _read_body(request, CloneRequest) if (await _body(request)).strip() else CloneRequest()


async def read_resume_request(request: Request) -> ResumeRequest:
    """Read the changes of a resumed job from the body, as JSON or YAML; an empty body changes nothing.

    Raises:
        HTTPException, SpecError, RequestError: as `read_submission`.
    """
    return await _read_body(request, ResumeRequest) if (await _body(request)).strip() else ResumeRequest()


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a query with unknown parameters.

    Raises:
        RequestError: it names the unknown parameters.
    """
    if not request.query_params:
        return
    known = sorted(_query_names(request.scope["route"].dependant))
    unknown = [(name, value) for name, value in request.query_params.items() if name not in known]
    # One error more than an answer lists, so that the answer says that there are more.
    errors = [
        FieldError(name[:MAX_NAME_LETTERS], value, "unknown query parameter", _suggest_parameter(name, known))
        for name, value in unknown[: MOST_FAULTS + 1]
    ]
    if errors:
        raise RequestError(errors)


def _query_names(dependant: Dependant) -> set[str]:
    own = {each.alias for each in dependant.query_params}
    return own.union(*(_query_names(each) for each in dependant.dependencies))


def _suggest_parameter(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name[:MAX_NAME_LETTERS].lower(), known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known parameters: {', '.join(known)}" if known else "this address has no parameters"


async def read_spec(request: Request) -> Any:
    """Read a spec from the body, as JSON or YAML: plain data, unchecked.

    Raises:
        HTTPException: the body is of another type (415).
        SpecError: the body cannot be read.
    """
    service = await get_service(request)
    return await service.body_lookups.run_work(_read_text, await _body(request))


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind not in SUBMISSION_TYPES:
        raise HTTPException(415, f"the body is {kind}; send application/json or application/yaml")
    return await request.body()


async def _read_body(request: Request, model: type[Body]) -> Body:
    # YAML takes seconds to read: neither on the event loop nor in the threads of the other routes.
    service = await get_service(request)
    return await service.body_lookups.run_work(_read_as, model, await _body(request))


def _read_text(body: bytes) -> Any:
    try:
        return parse_text(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def _read_as(model: type[Body], body: bytes) -> Body:
    data, shape = _read_text(body), BODY_EXAMPLES[model.__name__]
    if isinstance(data, dict) and len(data) > MAX_KEYS:
        # Each of them would be an error.
        many = FieldError("body", None, f"{len(data):,} fields are too many", f"at most {MAX_KEYS}; {shape}")
        raise RequestError([many])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RequestError(_make_errors(error, shape)) from None


def _make_errors(error: ValidationError, shape: str) -> list[FieldError]:
    """List the errors of a body, with shortened values."""
    found = []
    for item in error.errors(include_url=False):
        context = {"model": shape} | item.get("ctx", {})
        field_error = make_field_error({**item, "loc": ("body", *item["loc"]), "ctx": context})
        found.append(field_error._replace(value=shorten_value(field_error.value)))
    return found


async def read_last_event_id(
    last_event_id: Annotated[
        str | None, Header(description="Id of the last received event; the stream continues after it.")
    ] = None,
) -> int:
    """Read the event id after which a stream continues; 0 without the header: from the first event.

    Raises:
        RequestError: the header has no event id.
    """
    text = last_event_id or "0"
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(LAST_ID))
    if not is_number or int(text) > LAST_ID:
        raise make_event_id_error(text[:MAX_NAME_LETTERS])
    return int(text)


def make_event_id_error(given: str) -> RequestError:
    """Make the error for a `Last-Event-ID` that is no event of the job."""
    message, hint = "is no event of this job", "leave the header out to begin with the first event"
    return RequestError([FieldError("Last-Event-ID", given, message, hint)])


JobId = Annotated[str, Path(description="Id of the job.", min_length=1, max_length=64)]
ServiceOf = Annotated[Service, Depends(get_service)]
StreamsOf = Annotated[OpenStreams, Depends(get_streams)]
SubmissionBody = Annotated[SubmissionRequest, Depends(read_submission)]
CloningBody = Annotated[CloneRequest, Depends(read_clone_request)]
ResumeBody = Annotated[ResumeRequest, Depends(read_resume_request)]
SpecBody = Annotated[Any, Depends(read_spec)]
LastEvent = Annotated[int, Depends(read_last_event_id)]
