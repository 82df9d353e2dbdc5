"""Whether anybody uses the service: what `fedsim serve --idle-exit` looks at."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Asked by whoever watches over the service, not by whoever uses it."""


class Activity:
    """Counts requests in progress and remembers when the last one ended."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.last = time.monotonic()

    def mark_used(self) -> None:
        """Note that the service is in use now."""
        self.last = time.monotonic()

    def idle_seconds(self) -> float:
        """Tell for how long nobody has asked for anything; an open stream counts as asking."""
        return 0.0 if self.in_progress else time.monotonic() - self.last

    def wrap_app(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application so that its requests are counted."""

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
