"""The Ray that `fedsim serve` brings along: found where it runs, started where it does not.

It belongs to fedsim's home, not to the process that started it: a killed API leaves it running, the next API
finds it again, and its keeper (`jobs.local_ray.keeper`) ends it when nobody needs it any more.
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


@dataclass(frozen=True)
class RayAddress:
    """How to reach a Ray cluster.

    Attributes:
        gcs: what `ray.init` takes.
        jobs: what `JobSubmissionClient` takes; for the local Ray the URL of its dashboard.
        token: what Ray asks for; None where the environment decides (a cluster that is not ours).
    """

    gcs: str
    jobs: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str] | None:
        """HTTP headers for the Jobs API."""
        return None if self.token is None else {"Authorization": f"Bearer {self.token}"}


def ensure_ray(
    settings: Settings, timeout: float = START_SECONDS, cancelled: threading.Event | None = None
) -> RayAddress:
    """The cluster of these settings; where that is a local Ray, it is started unless it runs.

    Args:
        settings: a `ray_address` names somebody else's cluster, which is taken as it is.
        timeout: seconds to wait for a local Ray.
        cancelled: set by another thread to give up waiting.

    Raises:
        RayUnavailable: the local Ray did not start; the message ends with the last lines of its log.
    """
    if settings.ray_address is not None:
        return RayAddress(settings.ray_address, settings.ray_address)
    home = settings.make_home()
    deadline = time.monotonic() + timeout
    (home / ALIVE).touch()
    keeper = None
    while (address := find_ray(settings)) is None:
        # Of several who find no keeper one starts it; the keeper's own lock decides if two try at once.
        if not is_keeper_alive(home) and (keeper is None or keeper.poll() is not None):
            if keeper is not None and keeper.returncode != 0:
                raise _make_start_error(home, f"it ended with exit code {keeper.returncode}")
            keeper = _start_keeper(settings, home)
        if time.monotonic() > deadline:
            raise _make_start_error(home, f"it did not answer within {timeout:g} s")
        if cancelled is not None and cancelled.is_set():
            raise RayUnavailable("nobody waits for the local Ray any more")
        time.sleep(POLL_SECONDS)
    return address


def find_ray(settings: Settings) -> RayAddress | None:
    """The local Ray of these settings if it runs and answers."""
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
        Whether there was one.

    Raises:
        RayUnavailable: it did not end in time.
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
    """`PYTHONPATH` for processes that Ray starts elsewhere: fedsim's packages, then what stands there now."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def _start_keeper(settings: Settings, home: Path) -> subprocess.Popen[bytes]:
    numbers = {"FEDSIM_RAY_NUM_CPUS": settings.ray_num_cpus, "FEDSIM_RAY_NUM_GPUS": settings.ray_num_gpus}
    environment = os.environ | settings.public_environment() | {"PYTHONPATH": package_path()}
    environment |= {name: str(value) for name, value in numbers.items() if value is not None}
    environment["FEDSIM_RAY_IDLE"] = str(settings.ray_idle_seconds)
    # What Ray's processes have in their environment, every job on it can read.
    for name in ("FEDSIM_TOKEN", SECRETS_VARIABLE, *settings.secret_environment()):
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
    # Somebody has to take note of its end, or it stays in the process table as long as this process lives.
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
    # Only the first line is for everybody.
    told = [f"the local Ray did not start: {what}", "the last lines of its log:", *lines[-TAIL_LINES:]]
    return RayUnavailable("\n".join(told), f"the whole log is {home / LOG}")
