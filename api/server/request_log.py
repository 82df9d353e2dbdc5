"""The outermost layer: gives each request an id, logs it and counts it in the metrics."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.sdk.calls import PREFIX
from api.server.errors import METHODS
from api.server.metrics import ServiceMetrics
from api.server.service_log import request_id

logger = logging.getLogger("fedsim.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
WARNING_STATUSES = frozenset({401, 403, 429})
CLOSED_EARLY = 499
"""Status of a request that ended before its answer started."""


class RequestLogLayer:
    """The layer that gives requests an id, counts and logs them; never headers, queries or bodies.

    Args:
        app: the inner application.
        metrics: the metrics of the service.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServiceMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name, status, began = _id_of(scope), CLOSED_EARLY, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", name.encode())]
                message = {**message, "headers": headers}
            await send(message)

        mark = request_id.set(name)
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self._note(scope, status, time.perf_counter() - began)
            request_id.reset(mark)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = find_route_name(scope)
        self.metrics.count_request(method, route, status, seconds)
        path = quote(scope["path"])
        fields: dict[str, Any] = {"method": method, "path": path[:500], "route": route, "status": status}
        fields |= {"ms": round(1000 * seconds, 1), "client": (scope.get("client") or ("",))[0]}
        logger.log(_level(path, status), "%s %s %d", method, path[:500], status, extra={"fields": fields})


def _level(path: str, status: int) -> int:
    if status >= 500 and path not in QUIET_PATHS:
        return logging.ERROR
    if status in WARNING_STATUSES:
        return logging.WARNING
    return logging.DEBUG if path in QUIET_PATHS else logging.INFO


def _id_of(scope: Scope) -> str:
    """Return the request id of the caller if it is well formed; else make one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def find_route_name(scope: Scope) -> str:
    """Return the route of a request with the names of its parameters: a small set of names."""
    path = getattr(scope.get("route"), "path", None)
    if path is not None:
        # The path of a route has no prefix.
        under = scope["path"].startswith(f"{PREFIX}/") and not path.startswith(f"{PREFIX}/")
        return f"{PREFIX}{path}" if under else str(path)
    return "/static" if scope["path"].startswith("/static/") else "none"
