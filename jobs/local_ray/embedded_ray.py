"""The local Ray of `fedsim serve`: find it if it runs, and start it if it does not.

The local Ray belongs to fedsim's home, not to the process that started it. A killed API leaves it running,
and the next API finds it. Its keeper (`jobs.local_ray.keeper`) ends it when no API and no job needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.errors import RayUnavailable
from jobs.local_ray.keeper import fetch_json
from jobs.local_ray.keeper_files import (
    ALIVE,
    LOG,
    Addresses,
    is_keeper_alive,
    read_addresses,
    read_or_make_token,
)
from jobs.settings import SECRETS_VARIABLE, Settings

START_SECONDS = 90.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
TAIL_LINES = 15

SETTINGS_OF_JOBS = ("FEDSIM_PLUGINS", "FEDSIM_TRACK")
"""Settings that a job has from its service, and never from the local Ray."""


@dataclass(frozen=True)
class RayAddress:
    """The addresses of a Ray cluster.

    Attributes:
        gcs: the address for `ray.init`.
        jobs: the address for `JobSubmissionClient`; for the local Ray the URL of its dashboard.
        token: that Ray asks for; None for a cluster that fedsim did not start: the environment has its token.
    """

    gcs: str
    jobs: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str] | None:
        """Return the HTTP headers for the Jobs API."""
        return None if self.token is None else {"Authorization": f"Bearer {self.token}"}


def ensure_ray(
    settings: Settings, timeout: float = START_SECONDS, cancelled: threading.Event | None = None
) -> RayAddress:
    """Return the address of the settings' cluster; start the local Ray if it is needed and does not run.

    Args:
        settings: a `ray_address` names an existing cluster, whose address is returned unchecked.
        timeout: seconds to wait for a local Ray.
        cancelled: another thread sets it to end the wait.

    Raises:
        RayUnavailable: if the local Ray did not start; the message ends with the last lines of its log.
    """
    if settings.ray_address is not None:
        return RayAddress(settings.ray_address, settings.ray_address)
    home = settings.make_home()
    deadline = time.monotonic() + timeout
    (home / ALIVE).touch()
    keeper = None
    while (address := find_ray(settings)) is None:
        # If two processes start a keeper at once, the keeper's lock lets only one run.
        if not is_keeper_alive(home) and (keeper is None or keeper.poll() is not None):
            if keeper is not None and keeper.returncode != 0:
                raise _make_start_error(home, f"it ended with exit code {keeper.returncode}")
            keeper = _start_keeper(settings, home)
        if time.monotonic() > deadline:
            raise _make_start_error(home, f"it did not answer within {timeout:g} s")
        if cancelled is not None and cancelled.is_set():
            raise RayUnavailable("the wait for the local Ray was cancelled")
        time.sleep(POLL_SECONDS)
    return address


def find_ray(settings: Settings) -> RayAddress | None:
    """Return the address of the settings' local Ray; None if it does not run or answer."""
    home = settings.home
    addresses = read_addresses(home)
    if addresses is None or not addresses.gcs or not is_keeper_alive(home):
        return None
    secret = read_or_make_token(home)
    if fetch_json(addresses.dashboard, "/api/version", secret) is None:
        return None
    return RayAddress(addresses.gcs, addresses.dashboard, secret)


def stop_ray(settings: Settings) -> bool:
    """End the local Ray of these settings, and every job that runs on it.

    Returns:
        Whether a local Ray was running.

    Raises:
        RayUnavailable: if the local Ray did not end in time.
    """
    home = settings.home
    addresses = read_addresses(home)
    if addresses is None or not is_keeper_alive(home):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(addresses.pid, number)
        if _wait_for_end(home, addresses, STOP_SECONDS):
            return True
    raise RayUnavailable(f"the local Ray (process {addresses.pid}) did not end", f"see {home / LOG}")


def package_path() -> str:
    """Return the `PYTHONPATH` for processes in another folder: fedsim's packages, then the present value."""
    # An empty entry would be the folder of the new process.
    given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([str(Path(__file__).parents[2]), *given])


def _start_keeper(settings: Settings, home: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | settings.public_environment() | settings.ray_sizes()
    environment["PYTHONPATH"] = package_path()
    environment["FEDSIM_RAY_IDLE"] = str(settings.ray_idle_seconds)
    environment["FEDSIM_RUNNER_IDLE"] = str(settings.runner_idle_seconds)
    # Every job can read the environment of Ray's processes: remove the secrets. The next service of this home
    # may have other plug-ins and trackers, or none.
    for name in ("FEDSIM_TOKEN", SECRETS_VARIABLE, *settings.secret_environment(), *SETTINGS_OF_JOBS):
        environment.pop(name, None)
    with (home / LOG).open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "jobs.local_ray.keeper"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
    # A thread waits for the keeper's end: else the ended keeper stays in the process table.
    threading.Thread(target=keeper.wait, name="keeper", daemon=True).start()
    return keeper


def _wait_for_end(home: Path, addresses: Addresses, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_keeper_alive(home) and read_addresses(home) == addresses:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _make_start_error(home: Path, what: str) -> RayUnavailable:
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (home / LOG).read_text("utf-8", errors="replace").splitlines()
    # Callers without a token see the first line only.
    message = [f"the local Ray did not start: {what}", "the last lines of its log:", *lines[-TAIL_LINES:]]
    return RayUnavailable("\n".join(message), f"the whole log is {home / LOG}")
