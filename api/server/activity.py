"""Measures how long the service is idle, for `fedsim serve --idle-exit`."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Requests of monitors; they do not count as use of the service."""


class Activity:
    """Counts requests in progress and remembers when the last one ended."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.last = time.monotonic()

    def mark_used(self) -> None:
        """Record that the service is in use now."""
        self.last = time.monotonic()

    def idle_seconds(self) -> float:
        """Return the seconds since the last request ended; 0 during a request or an open stream."""
        return 0.0 if self.in_progress else time.monotonic() - self.last

    def wrap_app(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application to count its requests."""

        async def serve_counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
                await app(scope, receive, send)
                return
            self.in_progress += 1
            try:
                await app(scope, receive, send)
            finally:
                self.in_progress -= 1
                self.mark_used()

        return serve_counted
