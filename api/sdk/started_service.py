"""The services that were started on this machine: their records in the home, and the default address."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx

from jobs.file_locks import is_locked
from jobs.settings import Settings

DEFAULT_PORT = 8000
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

RECORDS = "serve*.json"
"""The records of the services of a home. Older versions wrote one file, `serve.json`."""


class StartedService(NamedTuple):
    """A service that was started on this machine, as recorded in `home/serve.INSTANCE.json`.

    Attributes:
        pid: process id.
        url: address of the service.
        instance: random id in `/healthz`; another service at the same address has another id.
        machine: name of the machine, because several may share the home; empty in records of older versions.
    """

    pid: int
    url: str
    instance: str
    machine: str = ""

    @classmethod
    def list_living(cls, settings: Settings) -> list[StartedService]:
        """List the services of the home that live on this machine, the newest first.

        A service lives if it holds the lock of its record, or answers. Other records of this machine are
        removed. Nobody here can ask a service of another machine, and some disks do not show its lock.
        """
        found = []
        for path in settings.home.glob(RECORDS):
            with suppress(OSError, ValueError, KeyError, TypeError):
                data, written = json.loads(path.read_text("utf-8")), path.stat().st_mtime
                service = cls(
                    int(data["pid"]), str(data["url"]), str(data["instance"]), str(data.get("machine", ""))
                )
                if service.machine not in ("", platform.node()):
                    continue
                if is_locked(path) or service.answers():
                    found.append((written, service))
                else:
                    path.unlink()
        return [service for _, service in sorted(found, reverse=True)]

    @contextmanager
    def recorded(self, settings: Settings) -> Iterator[None]:
        """Keep the record of this service, and its lock, which the system frees if the process is killed."""
        path = settings.make_home() / f"serve.{self.instance}.json"
        aside = path.with_suffix(".tmp")
        with aside.open("w", encoding="utf-8") as file:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(self._asdict() | {"machine": platform.node()}))
            file.flush()
            aside.replace(path)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def answers(self) -> bool:
        """Return whether this service answers."""
        health = fetch_health(self.url)
        return health is not None and health.get("instance") == self.instance

    def stop(self, seconds: float = 20.0) -> bool:
        """Stop the service; return False if it still answers after `seconds`.

        A second signal after half of the time ends open requests.
        """
        for _ in range(2):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            end = time.monotonic() + seconds / 2
            while self.answers() and time.monotonic() < end:
                time.sleep(0.1)
            if not self.answers():
                return True
        return False


def find_default_url() -> str:
    """Return the default address: FEDSIM_URL, then the service that `FEDSIM_HOME` names, then port 8000."""
    if named := os.environ.get("FEDSIM_URL"):
        return named
    living = StartedService.list_living(Settings.from_env())
    return next((service.url for service in living if service.answers()), DEFAULT_URL)


def fetch_health(url: str) -> dict[str, Any] | None:
    """Return the answer of `/healthz`; None if no fedsim answers at this address."""
    try:
        body = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    return body if isinstance(body, dict) and body.get("service") == "fedsim" else None
