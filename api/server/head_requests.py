"""HEAD: every address that answers GET answers HEAD with the same head and no body."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadLayer:
    """The layer that has HEAD served as GET, up to the head of the answer.

    Args:
        app: what serves it.
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
                # A body may be long, and a stream has no end: nobody waits for it.
                raise _HeadSent
            answered = True
            # The server itself looks here before it counts a body.
            scope["method"] = "HEAD"
            await send(message)
            await send({"type": "http.response.body", "body": b""})

        # In place, because the outer layers read the route from this very scope afterwards.
        scope["method"] = "GET"
        try:
            await self.app(scope, receive, send_head)
        except (_HeadSent, ClientDisconnect):
            pass
        finally:
            scope["method"] = "HEAD"


class _HeadSent(OSError):
    """The head is sent. An OSError, as of a caller that has gone: what streams ends in good order."""
