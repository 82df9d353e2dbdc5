"""From an error to an answer: `application/problem+json` (RFC 9457).

Every refusal has the same shape, whoever raised it: `type`, `title`, `status`, `detail`, and of our own
`code` (stable, in capitals), `hint` (what to do), `request_id` (what the log calls the request) and `errors`
(the faults of a spec or of a request, each with path, value, message, hint). What nobody expected becomes a
500 that says so and nothing more; its trace goes to the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.server.request_errors import MOST_FAULTS, make_field_error
from api.server.service_log import request_id
from fedsim.errors import FedsimError, FieldError, ServiceError, SpecError
from jobs.spec.error_messages import shorten_value
from jobs.store.database import NO_ANSWER_ERRORS

logger = logging.getLogger("fedsim.api")

PROBLEM = "application/problem+json"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

STATUS_OF_CODE: dict[str, int] = {
    "BAD_SPEC": 422,
    "BAD_REQUEST": 422,
    "DOES_NOT_FIT": 422,
    "BAD_DATA": 422,
    "JOB_NOT_FOUND": 404,
    "ARTIFACT_NOT_FOUND": 404,
    "CONFLICT": 409,
    "BAD_PAGE_TOKEN": 400,
    "RAY_UNAVAILABLE": 503,
    "STORAGE_FAILED": 503,
}
"""The status of each code of `fedsim.errors` that a caller can cause or wait for; any other is a 500."""

CODE_OF_STATUS: dict[int, str] = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    406: "NOT_ACCEPTABLE",
    413: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    422: "BAD_REQUEST",
    429: "TOO_MANY_REQUESTS",
    503: "NOT_READY",
}
"""The code of a refusal that the web layer makes by itself."""

ROUTER_MESSAGES: dict[str, tuple[str, str]] = {
    "Not Found": ("there is nothing at this address", "GET /api/v1/openapi.json lists what there is"),
    "Method Not Allowed": ("this address has another method", "GET /api/v1/openapi.json lists what there is"),
}
"""Message and hint for what the router says in two words."""


class ServiceBusy(ServiceError):
    """So many ask for the same that this one has to come again.

    Attributes:
        seconds: whole ones, after which it may: the answer's `Retry-After`.
    """

    def __init__(self, message: str, seconds: int = 5) -> None:
        super().__init__(message, f"ask again in {seconds} s", status=503, code="NOT_READY")
        self.seconds = seconds


class Fault(BaseModel):
    """One fault of a spec or of a request."""

    path: str = Field(description="Where: a dotted path into the spec, or the name of a parameter.")
    value: Any = Field(default=None, description="What was there.")
    message: str = Field(description="Why it is wrong.")
    hint: str = Field(default="", description="The way out.")


class Problem(BaseModel):
    """A refusal, as RFC 9457 has it, with the service's own `code`, `hint` and `errors`."""

    model_config = ConfigDict(title="Problem")

    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What was wrong, for people.")
    code: str = Field(description="What was wrong, for programs: stable, in capitals.")
    hint: str = Field(default="", description="What to do about it.")
    request_id: str = Field(default="", description="Names the request in the server's log.")
    errors: list[Fault] = Field(default_factory=list)


def make_problem(
    status: int,
    detail: str,
    *,
    code: str = "",
    hint: str = "",
    errors: Iterable[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build a refusal.

    Args:
        status: the HTTP status.
        detail: what was wrong, for people.
        code: what was wrong, for programs; by default the one that belongs to the status.
        hint: what to do about it.
        errors: the single faults, where there are several; only the first of very many are told.
        headers: more headers.
    """
    faults = list(errors)
    if len(faults) > MOST_FAULTS:
        detail = f"{detail}; the first {MOST_FAULTS} are listed"
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code or CODE_OF_STATUS.get(status, "INTERNAL"),
        "hint": hint,
        "request_id": request_id.get(),
        "errors": [{**e._asdict(), "value": shorten_value(e.value)} for e in faults[:MOST_FAULTS]],
    }
    return Response(json.dumps(body, allow_nan=False), status, headers, media_type=PROBLEM)


def describe_problems(
    *statuses: int, also: Mapping[int | str, dict[str, Any]] = MappingProxyType({})
) -> dict[int | str, dict[str, Any]]:
    """Describe refusals, and other answers in `also`, for the OpenAPI schema of a route."""
    answers = dict(also)
    for status in statuses:
        content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        answers[status] = {"description": HTTPStatus(status).phrase, "content": content}
    return answers


def answer_fedsim_error(error: FedsimError) -> Response:
    """Answer for an error of fedsim's own tree; codes without a status in the table are a 500."""
    status = error.status if isinstance(error, ServiceError) else STATUS_OF_CODE.get(error.code, 500)
    if status == 500:
        logger.error("%s: %s", error.code, error, exc_info=error)
    elif error.code == "STORAGE_FAILED":
        logger.error("%s", error)
    faults = error.errors
    count = len(faults)
    detail = error.message
    if isinstance(error, SpecError):
        detail = f"the {error.subject} has {count:,} error{'s' * (count != 1)}"
    headers = {"Retry-After": str(error.seconds)} if isinstance(error, ServiceBusy) else None
    return make_problem(status, detail, code=error.code, hint=error.hint, errors=faults, headers=headers)


def answer_validation_error(error: RequestValidationError) -> Response:
    """Answer for parameters whose shape is wrong, all faults together."""
    items = error.errors()
    count = len(items)
    # One more than is told: so it is said that there are more.
    faults = [make_field_error(item) for item in items[: MOST_FAULTS + 1]]
    return make_problem(422, f"the request has {count:,} error{'s' * (count != 1)}", errors=faults)


def answer_http_error(request: Request, error: HTTPException) -> Response:
    """Answer for what the web layer itself refuses: no such page, a wrong method, an unknown media type."""
    detail, hint = ROUTER_MESSAGES.get(str(error.detail), (str(error.detail), ""))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return make_problem(error.status_code, detail, hint=hint, headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods of all routes of an address; the router itself tells those of the first one."""
    # Without what the router has written into the scope of this request.
    scope = {"type": "http", "path": request.scope["path"], "root_path": request.scope.get("root_path", "")}
    routes = request.app.routes
    # What answers GET answers HEAD.
    asked = {method: scope | {"method": "GET" if method == "HEAD" else method} for method in METHODS}
    return [m for m in METHODS if any(route.matches(asked[m])[0] is Match.FULL for route in routes)]


class UnexpectedErrorLayer:
    """The outermost layer: what nobody expected is logged with its trace and answered without one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, note_start)
        except Exception:
            if scope["type"] != "http":
                raise
            logger.exception("unexpected error in %s %s", scope["method"], scope["path"])
            if not started:
                answer = make_problem(500, "an unexpected error; the server's log has the details")
                await answer(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error as a problem."""

    async def fedsim_error(_: Request, error: Exception) -> Response:
        return (
            answer_fedsim_error(error)
            if isinstance(error, FedsimError)
            else make_problem(500, "an unexpected error")
        )

    async def validation_error(_: Request, error: Exception) -> Response:
        return answer_validation_error(error)  # type: ignore[arg-type]

    async def http_error(request: Request, error: Exception) -> Response:
        return answer_http_error(request, error)  # type: ignore[arg-type]

    async def store_error(_: Request, error: Exception) -> Response:
        logger.error("the store does not answer", exc_info=error)
        return make_problem(
            503, "the store does not answer", hint="ask again; the server's log has the details"
        )

    app.add_exception_handler(FedsimError, fedsim_error)
    for silent in NO_ANSWER_ERRORS:
        app.add_exception_handler(silent, store_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
