"""Runs the web application: its socket, its signals, and its stop when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from api.sdk.started_service import StartedService
from api.server.activity import Activity
from api.server.connections import ClosingServer, limit_accept_errors, make_server_config
from api.server.local_service import identify_service
from fedsim.errors import ServiceError, SettingsError, StoreUnusable
from jobs.settings import Settings
from jobs.store.states import ACTIVE, JobState

logger = logging.getLogger("fedsim.api")

BUSY_STATES = ACTIVE | {JobState.QUEUED}
GRACE_SECONDS = 5
"""Seconds that open requests may take when the server stops."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        SettingsError: the port is taken, or the address is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"cannot listen on --host {host!r}: {error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _make_listen_error(host, port, error) from error
    return listener


def _make_listen_error(host: str, port: int, error: OSError) -> SettingsError:
    if isinstance(error, PermissionError):
        return SettingsError(f"you may not use port {port}", "use a port above 1023")
    url = make_local_url(host, port)
    if identify_service(url) == "fedsim":
        hint = "use that service, stop it with `fedsim stop`, or choose another --port"
        return SettingsError(f"port {port} is taken: a fedsim service already answers at {url}", hint)
    return SettingsError(f"cannot listen on {host} port {port}: {error.strerror}", "choose another --port")


def make_local_url(host: str, port: int) -> str:
    """Return the URL of a server for this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


class Server(ClosingServer):
    """A server that ends its streams first, so that it stops quickly, and can stop when idle.

    Args:
        app: the application.
        started: record of this service, written when it answers.
        settings: settings with the home for the record.
        idle_exit: seconds without use after which the server stops; None: never.
    """

    def __init__(
        self, app: FastAPI, started: StartedService, settings: Settings, idle_exit: float | None
    ) -> None:
        super().__init__(make_server_config(app, settings.limits, GRACE_SECONDS))
        self.app, self.service, self.settings, self.idle_exit = app, started, settings, idle_exit
        self.interrupted = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal. Unlike uvicorn, this does not raise the signal again before the clean-up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        yield

    def _on_signal(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        # The second signal stops without waiting.
        self.force_exit = self.app.state.stopping
        self.drain(0 if self.force_exit else self.settings.drain_seconds)

    def drain(self, seconds: float) -> None:
        """Report at `/readyz` that the service is stopping, serve for `seconds` more, then stop."""
        self.app.state.stopping = True
        if seconds:
            logger.info("stopping in %g s; requests are still served until then", seconds)
            asyncio.get_running_loop().call_later(seconds, self.stop)
        else:
            self.stop()

    def stop(self) -> None:
        """Start to stop: streams end, new connections are refused, open requests get `GRACE_SECONDS`."""
        self.app.state.stopping = True
        service = getattr(self.app.state, "service", None)
        if service is not None:
            service.close()
        self.should_exit = True

    async def run_until_stopped(self, listener: socket.socket, announce: Callable[[str], None]) -> None:
        """Serve, and record the service in the home meanwhile; `announce` is called with the URL."""
        limit_accept_errors(asyncio.get_running_loop())
        with contextlib.ExitStack() as record:
            watch = asyncio.create_task(self._watch(announce, record))
            try:
                await self.serve(sockets=[listener])
            finally:
                watch.cancel()

    async def _watch(self, announce: Callable[[str], None], record: contextlib.ExitStack) -> None:
        while not self.started:
            await asyncio.sleep(0.02)
        record.enter_context(self.service.recorded(self.settings))
        announce(self.service.url)
        while self.idle_exit is not None:
            await asyncio.sleep(min(1.0, self.idle_exit / 4))
            if await self._is_idle(self.idle_exit):
                logger.info("no requests and no active jobs for %g s: stopping", self.idle_exit)
                self.stop()
                return

    async def _is_idle(self, seconds: float) -> bool:
        activity: Activity = self.app.state.activity
        if activity.idle_seconds() < seconds:
            return False
        try:
            busy = await asyncio.to_thread(self.app.state.service.store.count, BUSY_STATES)
        except (SQLAlchemyError, StoreUnusable) as error:
            logger.warning("cannot read from the database whether jobs run; trying again: %s", error)
            return False
        if busy == 0:
            # A request may have arrived during the query.
            return activity.idle_seconds() >= seconds
        # An active job counts as use of the service.
        activity.mark_used()
        return False


def serve_app(
    app: FastAPI,
    settings: Settings,
    host: str,
    listener: socket.socket,
    *,
    idle_exit: float | None,
    announce: Callable[[str], None],
) -> int:
    """Serve until a signal arrives or, with `idle_exit`, until the service was idle for so many seconds.

    Args:
        app: the application.
        settings: settings with the home for the record of this service.
        host: the listening address.
        listener: the listening socket.
        idle_exit: seconds; None: never stop.
        announce: called with the URL when the service answers.

    Returns:
        The exit code: 130 after Ctrl-C, else 0.

    Raises:
        ServiceError: the application did not start; the log has the reason.
    """
    started = StartedService(os.getpid(), make_local_url(host, listener.getsockname()[1]), app.state.instance)
    server = Server(app, started, settings, idle_exit)
    asyncio.run(server.run_until_stopped(listener, announce))
    if not server.started:
        raise ServiceError("the service could not start", "see the lines above")
    return 130 if server.interrupted else 0
