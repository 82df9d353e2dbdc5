"""Turns errors into answers of the type `application/problem+json` (RFC 9457).

Every refusal has the fields of the RFC (`type`, `title`, `status`, `detail`) and four more: `code` (stable,
in capitals), `hint` (how to fix it), `request_id` (id of the request in the log) and `errors` (errors of a
spec or a request, each with path, value, message and hint). An unexpected error becomes a 500 without
details; its trace goes to the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
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
"""Status of the codes of `fedsim.errors` that a caller can cause or wait for; any other code is a 500."""

CODE_OF_STATUS: dict[int, str] = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    422: "BAD_REQUEST",
    429: "TOO_MANY_REQUESTS",
    503: "NOT_READY",
}
"""Code of a refusal of the web layer."""

ROUTER_MESSAGES: dict[str, tuple[str, str]] = {
    "Not Found": ("no such address", "GET /api/v1/openapi.json lists all addresses"),
    "Method Not Allowed": (
        "wrong HTTP method for this address",
        "GET /api/v1/openapi.json lists all addresses and methods",
    ),
}
"""Message and hint for the short texts of the router."""


class ServiceBusy(ServiceError):
    """The service is too busy for this request.

    Attributes:
        seconds: seconds until the caller may try again: the `Retry-After` of the answer.
    """

    def __init__(self, message: str, seconds: int = 5) -> None:
        super().__init__(message, f"try again in {seconds} s", status=503, code="NOT_READY")
        self.seconds = seconds


class Fault(BaseModel):
    """One error of a spec or of a request."""

    path: str = Field(description="Dotted path in the spec, or name of a parameter.")
    value: Any = Field(default=None, description="The wrong value.")
    message: str = Field(description="Why the value is wrong.")
    hint: str = Field(default="", description="How to fix it.")


class Problem(BaseModel):
    """A refusal as in RFC 9457, with `code`, `hint`, `request_id` and `errors`."""

    model_config = ConfigDict(title="Problem")

    type: str = "about:blank"
    title: str = Field(description="Text of the HTTP status.")
    status: int
    detail: str = Field(description="The error, for people.")
    code: str = Field(description="The error, for programs: stable, in capitals.")
    hint: str = Field(default="", description="How to fix it.")
    request_id: str = Field(default="", description="Id of the request in the server's log.")
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
        detail: the error, for people.
        code: the error, for programs. Default: the code of the status.
        hint: how to fix it.
        errors: single errors; the answer lists at most 100.
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
    """Describe refusals and the answers in `also` for the OpenAPI schema of a route."""
    answers = dict(also)
    for status in statuses:
        content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        answers[status] = {"description": HTTPStatus(status).phrase, "content": content}
    return answers


async def answer_fedsim_error(_: Request, error: FedsimError) -> Response:
    """Make the answer for a fedsim error; a code without a status in the table is a 500."""
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


async def answer_validation_error(_: Request, error: RequestValidationError) -> Response:
    """Make the answer for wrong parameters, with all errors."""
    items = error.errors()
    count = len(items)
    # One error more than listed, so that the answer says that there are more.
    faults = [make_field_error(item) for item in items[: MOST_FAULTS + 1]]
    return make_problem(422, f"the request has {count:,} error{'s' * (count != 1)}", errors=faults)


async def answer_http_error(request: Request, error: HTTPException) -> Response:
    """Make the answer for a refusal of the web layer, e.g. an unknown address or a wrong method."""
    detail, hint = ROUTER_MESSAGES.get(str(error.detail), (str(error.detail), ""))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return make_problem(error.status_code, detail, hint=hint, headers=headers)


def _methods(request: Request) -> list[str]:
    """List the methods of all routes of an address; the router itself lists only those of the first route."""
    # A fresh scope: the router has changed the scope of this request.
    scope = {"type": "http", "path": request.scope["path"], "root_path": request.scope.get("root_path", "")}
    routes = request.app.routes
    # An address with GET has HEAD too.
    asked = {method: scope | {"method": "GET" if method == "HEAD" else method} for method in METHODS}
    return [m for m in METHODS if any(route.matches(asked[m])[0] is Match.FULL for route in routes)]


class UnexpectedErrorLayer:
    """The layer that logs an unexpected error with its trace and answers without it."""

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
        except ClientDisconnect:
            return  # the caller went away, or was cut, before its whole body was here
        except Exception:
            if scope["type"] != "http":
                raise
            # Quoted: a path may hold line breaks.
            logger.exception("unexpected error in %s %s", scope["method"], quote(scope["path"]))
            if not started:
                answer = make_problem(500, "internal error; see the server's log")
                await answer(scope, receive, send)


async def answer_store_error(_: Request, error: Exception) -> Response:
    """Make the answer for a database that does not answer."""
    logger.error("the database does not answer", exc_info=error)
    return make_problem(
        503, "the database does not answer", hint="try again; see the server's log for details"
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error as a problem."""
    for silent in NO_ANSWER_ERRORS:
        app.add_exception_handler(silent, answer_store_error)
    # A handler takes errors of its own class only.
    app.add_exception_handler(FedsimError, answer_fedsim_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, answer_validation_error)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, answer_http_error)  # type: ignore[arg-type]
