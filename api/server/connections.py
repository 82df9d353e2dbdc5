"""Limits of connections, which uvicorn lacks: how many are open, and how long a caller takes for a request.

A caller that sends its request slowly, or not at all, holds a connection and an open file. So each request
has a time limit. If all connections are taken, the oldest one that waits for its caller makes room.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.sdk.transport.addresses import is_loopback
from api.server.errors import make_problem
from api.server.limits import find_network
from jobs.settings import Limits

logger = logging.getLogger("fedsim.api")

BODY_BYTES_PER_SECOND = 500
"""A body may take one second more for each 500 bytes, as with Apache's `RequestReadTimeout` by default."""

MOST_FILES = 65_536
"""The open files that this process asks the system for, if the system allows more."""

BACKLOG = 128
"""The connections that are accepted at once, before any limit is checked."""

RESERVED_FILES = 2 * BACKLOG
"""The files that connections leave to the store, the logs, and connections that are about to be closed."""

MOST_UNSENT = 512 * 2**20
"""The most bytes of answers that callers have not read yet. Beyond it the connection is closed whose caller
has read nothing for the longest time."""

MOST_UNREAD = 128 * 2**20
"""The most bytes of bodies that have not come whole. Beyond it the connection is closed that has sent nothing
for the longest time."""

STOP_SECONDS = 5.0
"""Seconds that the requests which a stopping server cancels may take to close what they have opened."""

ACCEPT_ERROR = "socket.accept() out of system resource"
"""The message of asyncio, which logs it for each failure: thousands of times a second."""


def make_server_config(app: FastAPI, limits: Limits, grace_seconds: int) -> uvicorn.Config:
    """Make the configuration of a server whose connections are limited.

    Args:
        app: the application.
        limits: the limits of connections; the open files of this process lower them.
        grace_seconds: seconds that open requests may take when the server stops.
    """
    protocol: Any = partial(LimitedProtocol, opened=OpenConnections(limits, raise_file_limit()))
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=grace_seconds,
    )


class ClosingServer(uvicorn.Server):
    """A uvicorn server that leaves no connection and no file open when it has stopped.

    Uvicorn leaves those connections open whose callers do not read their answers, and those that were
    accepted while it stopped. It also does not wait for the requests that it cancels, and the event loop,
    which ends next, cancels them again while they close their files.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, then abort the connections still open, and wait for their requests."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the event loop closes an aborted connection in its next turn
        if self.server_state.tasks and not self.force_exit:
            await asyncio.wait(self.server_state.tasks, timeout=STOP_SECONDS)


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows, at most `MOST_FILES`; return the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def limit_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log once a second that connections cannot be accepted; leave other errors of the loop as they are."""
    warning = CountedWarning("cannot accept connections: the system has no open files or memory left")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") == ACCEPT_ERROR:
            warning.count()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


class CountedWarning:
    """A warning that is logged once a second at most, with the number of its causes in that second.

    Args:
        message: the text of the line.
    """

    def __init__(self, message: str) -> None:
        self.message, self._causes = message, 0

    def count(self) -> None:
        """Count one cause; the line follows a second after the first one."""
        if not self._causes:
            asyncio.get_running_loop().call_later(1.0, self._log)
        self._causes += 1

    def _log(self) -> None:
        logger.warning("%s (%d in a second)", self.message, self._causes)
        self._causes = 0


class _KeptBytes:
    """Bytes that a server keeps because callers are slow; too many close the connection that changed first.

    Args:
        most: largest number of bytes of all connections.
        reason: why connections are closed, for the log.
        close: closes a connection, and sets its bytes to 0.
    """

    def __init__(self, most: int, reason: str, close: Callable[[LimitedProtocol], None]) -> None:
        self.most, self.total, self._close = most, 0, close
        self.by_connection: dict[LimitedProtocol, int] = {}
        self._warning = CountedWarning(f"connections closed: {reason}")

    def set(self, connection: LimitedProtocol, size: int) -> None:
        """Note the bytes of a connection, and that it is the last one that changed."""
        self.total += size - self.by_connection.pop(connection, 0)
        if size:
            self.by_connection[connection] = size
        while self.total > self.most and len(self.by_connection) > 1:
            self._warning.count()
            self._close(next(iter(self.by_connection)))


class OpenConnections:
    """The open connections of a server.

    Args:
        limits: the limits of connections.
        files: the files that this process may open.
    """

    def __init__(self, limits: Limits, files: int) -> None:
        self.request_seconds = limits.request_seconds
        self.most = min(limits.connections, max(BACKLOG // 2, files - RESERVED_FILES))
        self.most_of_address = limits.connections_per_address
        self.too_slow = CountedWarning(
            f"connections closed: their callers sent no whole request within {self.request_seconds:g} s"
        )
        self._too_many = CountedWarning("connections closed or refused: too many are open")
        self._networks: dict[LimitedProtocol, str] = {}
        self._of_network: Counter[str] = Counter()
        self._waiting: dict[LimitedProtocol, None] = {}
        self._unsent = _KeptBytes(MOST_UNSENT, "their callers do not read their answers", self._abort)
        self._unread = _KeptBytes(MOST_UNREAD, "their callers do not send the rest of a body", self._abort)

    def admit(self, connection: LimitedProtocol, address: str) -> Response | None:
        """Count a new connection; return the refusal if there are too many.

        Args:
            connection: the new connection.
            address: IP address of the caller. Loopback is not limited: a proxy may stand there.
        """
        network = "" if is_loopback(address) else find_network(address)
        if network and 0 < self.most_of_address <= self._of_network[network]:
            self._too_many.count()
            return _make_refusal(429, f"too many open connections from {address}")
        if len(self._networks) >= self.most:
            self._too_many.count()
            if not self._waiting:
                return _make_refusal(503, "too many open connections")
            self._abort(next(iter(self._waiting)))
        self._networks[connection] = network
        self._of_network[network] += 1
        return None

    def set_waiting(self, connection: LimitedProtocol, waiting: bool) -> None:
        """Note whether a connection waits for its caller: it may then be closed for a new one."""
        if not waiting:
            self._waiting.pop(connection, None)
        elif connection in self._networks:
            self._waiting.setdefault(connection)

    def set_unsent(self, connection: LimitedProtocol, size: int) -> None:
        """Note the bytes that a connection keeps for its caller; 0 once the caller has read them."""
        self._unsent.set(connection, size)

    def set_unread(self, connection: LimitedProtocol, size: int) -> None:
        """Note the bytes of a body that has not come whole; 0 once it has."""
        self._unread.set(connection, size)

    def _abort(self, connection: LimitedProtocol) -> None:
        self.remove(connection)
        connection.transport.abort()

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection that is closed."""
        self._waiting.pop(connection, None)
        self._unsent.set(connection, 0)
        self._unread.set(connection, 0)
        network = self._networks.pop(connection, None)
        if network is not None:
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]


def _make_refusal(status: int, detail: str) -> Response:
    headers = {"Retry-After": "5", "Connection": "close"}
    return make_problem(status, detail, hint="close some of them, or try again later", headers=headers)


class LimitedProtocol(H11Protocol):
    """One connection: uvicorn's own, with a time limit for the headers and the body of each request.

    Answers have no time limit. After an answer, the next headers count from its end.
    """

    def __init__(self, *arguments: Any, opened: OpenConnections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._opened = opened
        self._part: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._received = 0
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time of the first request, or refuse the connection."""
        super().connection_made(transport)
        refusal = self._opened.admit(self, self.client[0] if self.client else "")
        if refusal is None:
            self._limit_time()
            return
        answer = h11.Response(status_code=refusal.status_code, headers=refusal.raw_headers)
        for event in (answer, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
            transport.write(self.conn.send(event) or b"")
        transport.close()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request."""
        self._received += len(data)
        super().data_received(data)
        self._limit_time()
        self._unread = self._unread + len(data) if self._part is h11.SEND_BODY else 0
        self._opened.set_unread(self, self._unread)

    def on_response_complete(self) -> None:
        """Wait for the next request, a part of which may be here already."""
        super().on_response_complete()
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._opened.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a caller that does not read its answer."""
        super().pause_writing()
        self._opened.set_waiting(self, True)
        self._opened.set_unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._opened.set_waiting(self, self._timer is not None)
        self._opened.set_unsent(self, 0)

    def _limit_time(self) -> None:
        """Start the time of the part that the caller sends now, headers or body; none after the request."""
        part = self.conn.their_state
        if self.transport.is_closing() or (part is self._part and self._timer is not None):
            return
        self._stop_timer()
        self._part, self._began, self._received = part, self.loop.time(), 0
        if part in (h11.IDLE, h11.SEND_BODY):
            self._timer = self.loop.call_later(self._opened.request_seconds, self._check_time)
        self._opened.set_waiting(self, self._timer is not None or self.flow.write_paused)

    def _check_time(self) -> None:
        allowed = seconds = self._opened.request_seconds
        # A body that goes on after its refusal gets no more time.
        if self._part is h11.SEND_BODY and self.conn.our_state is not h11.DONE:
            allowed += self._received / BODY_BYTES_PER_SECOND
        left = self._began + allowed - self.loop.time()
        if self.flow.read_paused:
            left = seconds  # the service itself does not read on
        if left > 0:
            self._timer = self.loop.call_later(left, self._check_time)
            return
        self._opened.too_slow.count()
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
