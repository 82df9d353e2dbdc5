"""HEAD requests: the same status and headers as GET, without a body."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadLayer:
    """The layer that serves HEAD as GET and drops the body.

    Args:
        app: the inner application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        answered = False

        async def send_head(message: Message) -> None:
            nonlocal answered
            if answered:
                # A body may be long or endless: stop here.
                raise _HeadSent
            answered = True
            # The server checks the method here before it counts the bytes of the body.
            scope["method"] = "HEAD"
            await send(message)
            await send({"type": "http.response.body", "body": b""})

        # In place, because the outer layers read the route from the same scope afterwards.
        scope["method"] = "GET"
        try:
            await self.app(scope, receive, send_head)
        except (_HeadSent, ClientDisconnect):
            pass
        finally:
            scope["method"] = "HEAD"


class _HeadSent(OSError):
    """The headers are sent. An OSError, as if the caller had disconnected: streams then end cleanly."""
