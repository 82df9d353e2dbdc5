"""The service on this machine: starts it, and waits for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Literal

from api.sdk import calls
from api.sdk.client import FedSimClient
from api.sdk.started_service import fetch_health
from api.sdk.transport.connection import parse_url
from fedsim.errors import ServiceError, Unreachable
from jobs.local_ray.embedded_ray import package_path
from jobs.local_ray.machine import find_free_ports
from jobs.settings import Settings

START_SECONDS = 120.0
LOG_LINES = 15


def identify_service(url: str) -> Literal["fedsim", "somebody", "nobody"]:
    """Return which program answers at an address: fedsim, another one ("somebody"), or none ("nobody").

    Raises:
        SettingsError: it is no address of a service.
    """
    address = parse_url(url)
    if fetch_health(url) is not None:
        return "fedsim"
    try:
        with socket.create_connection((address.host, address.port or 80), timeout=2.0):
            return "somebody"
    except OSError:
        return "nobody"


def find_free_port() -> int:
    """Find a free port on loopback."""
    return find_free_ports(1)[0]


class BackgroundService:
    """A service in the background that keeps running after this command.

    Args:
        settings: settings with the home of the service.
        port: port on loopback.
        idle_exit: seconds without use after which the service stops.
    """

    def __init__(self, settings: Settings, port: int, idle_exit: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = settings.make_home() / "serve.log"
        # -P: Python must not import a folder `api` or `jobs` of the working directory.
        command = [sys.executable, "-P", "-m", "api.cli.main", "serve", "--port", str(port)]
        command += ["--idle-exit", str(idle_exit)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": package_path()},
            )

    def wait_for_start(self, say: Callable[[str], None]) -> None:
        """Wait until jobs can run; stop the service if it fails.

        Args:
            say: called again and again with the current step.

        Raises:
            ServiceError: the service stopped or took too long; the message has the end of its log.
        """
        try:
            wait_until_ready(self.url, say, self._check_alive)
        except BaseException as error:
            self.process.terminate()
            if isinstance(error, ServiceError):
                raise ServiceError(f"{error.message}; {self._log_end()}") from error
            raise

    def _check_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServiceError("the service stopped while it was starting")

    def _log_end(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return f"the end of {self.log}:\n" + "\n".join(lines)


def wait_until_ready(url: str, say: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
    """Wait until jobs can run on the service at an address.

    Args:
        url: address of the service.
        say: called again and again with the current step.
        check: called again and again; raises if the service cannot become ready.

    Raises:
        ServiceError: the service is not ready in time.
    """
    end = time.monotonic() + START_SECONDS
    with FedSimClient(url) as client:
        while (waiting := _find_missing_part(client)) is not None:
            say(waiting)
            check()
            if time.monotonic() > end:
                raise ServiceError(
                    f"{url} is not ready after {START_SECONDS:.0f} s: {waiting}",
                    "end it by `fedsim stop`; `fedsim serve` in a terminal then shows why",
                )
            time.sleep(0.2)


def _find_missing_part(client: FedSimClient) -> str | None:
    try:
        client.send(calls.readiness())
    except Unreachable:
        return "the service is starting"
    except ServiceError as error:
        if error.code != "NOT_READY":
            raise
        return error.message
    return None
