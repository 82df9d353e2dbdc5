"""Running the web application: its socket, its signals, and its end when nobody uses it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from api.server.activity import Activity
from api.server.local_service import StartedService, identify_service
from fedsim.errors import ServiceError, SettingsError, StoreFull
from jobs.settings import Settings
from jobs.store.states import ACTIVE, JobState

logger = logging.getLogger("fedsim.api")

BUSY_STATES = ACTIVE | {JobState.QUEUED}
GRACE_SECONDS = 5
"""Seconds that requests in progress get when the server stops."""


def open_listener(host: str, port: int) -> socket.socket:
    """Take the address to listen on.

    Raises:
        SettingsError: it is taken, or not an address of this machine; says who has it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"--host {host!r} is no address to listen on: {error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> SettingsError:
    if isinstance(error, PermissionError):
        return SettingsError(f"port {port} needs more rights than you have", "take one above 1023")
    url = make_local_url(host, port)
    if identify_service(url) == "fedsim":
        hint = "use that one, stop it with `fedsim stop`, or take another with --port"
        return SettingsError(f"port {port} is taken: a fedsim service already answers at {url}", hint)
    return SettingsError(f"cannot listen on {host} port {port}: {error.strerror}", "take another with --port")


def make_local_url(host: str, port: int) -> str:
    """Give the URL under which a server is reached from this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server that ends its streams first, so that it stops at once, and may end when it is idle.

    Args:
        app: the application.
        started: what to write into the note about this service, once it answers.
        settings: whose home gets the note.
        idle_exit: seconds without any use after which it stops; None serves for ever.
    """

    def __init__(
        self, app: FastAPI, started: StartedService, settings: Settings, idle_exit: float | None
    ) -> None:
        options: dict[str, Any] = {
            "log_config": None,
            "access_log": False,
            "lifespan": "on",
            "server_header": False,
        }
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=GRACE_SECONDS, **options))
        self.app, self.service_file, self.settings, self.idle_exit = app, started, settings, idle_exit
        self.interrupted = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal. Unlike uvicorn's own way this does not raise it again before our clean-up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        yield

    def _on_signal(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        # Asked twice: then without waiting for anybody.
        self.force_exit = self.app.state.stopping
        self.drain(0 if self.force_exit else self.settings.drain_seconds)

    def drain(self, seconds: float) -> None:
        """Say at `/readyz` that this is the end, go on serving for so long, and then stop."""
        self.app.state.stopping = True
        if seconds:
            logger.info("stopping in %g s; until then requests are served", seconds)
            asyncio.get_running_loop().call_later(seconds, self.stop)
        else:
            self.stop()

    def stop(self) -> None:
        """Begin to stop: streams end, nobody new is let in, and requests in progress get their grace."""
        self.app.state.stopping = True
        service = getattr(self.app.state, "service", None)
        if service is not None:
            service.close()
        self.should_exit = True

    async def run_until_stopped(self, listener: socket.socket, announce: Callable[[str], None]) -> None:
        """Serve, with a note in the home meanwhile; `announce` is told the URL when it answers."""
        watch = asyncio.create_task(self._watch(announce))
        try:
            await self.serve(sockets=[listener])
        finally:
            watch.cancel()
            self.service_file.remove_file(self.settings)

    async def _watch(self, announce: Callable[[str], None]) -> None:
        while not self.started:
            await asyncio.sleep(0.02)
        self.service_file.write_file(self.settings)
        announce(self.service_file.url)
        while self.idle_exit is not None:
            await asyncio.sleep(min(1.0, self.idle_exit / 4))
            if await self._is_idle(self.idle_exit):
                logger.info("nobody has used the service for %g s: it ends", self.idle_exit)
                self.stop()
                return

    async def _is_idle(self, seconds: float) -> bool:
        activity: Activity = self.app.state.activity
        if activity.idle_seconds() < seconds:
            return False
        try:
            busy = await asyncio.to_thread(self.app.state.service.store.count, BUSY_STATES)
        except (SQLAlchemyError, StoreFull) as error:
            logger.warning("the store does not say whether jobs run, and is asked again: %s", error)
            return False
        if busy == 0:
            # Somebody may have come while the store was asked.
            return activity.idle_seconds() >= seconds
        # A job is somebody's: its end is when the service was used last.
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
    """Serve until a signal comes or, with `idle_exit`, until nobody has used the service for so many seconds.

    Args:
        app: the application.
        settings: whose home gets the note about this service.
        host: the address listened on.
        listener: the socket that listens there.
        idle_exit: seconds; None serves for ever.
        announce: told the URL when it answers.

    Returns:
        The exit code: 130 after Ctrl-C, else 0.

    Raises:
        ServiceError: the application did not start; the log says why.
    """
    started = StartedService(os.getpid(), make_local_url(host, listener.getsockname()[1]), app.state.instance)
    server = Server(app, started, settings, idle_exit)
    asyncio.run(server.run_until_stopped(listener, announce))
    if not server.started:
        raise ServiceError("the service could not start", "the lines above say why")
    return 130 if server.interrupted else 0
