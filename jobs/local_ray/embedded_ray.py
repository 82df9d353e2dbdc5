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
from jobs.local_ray.files import ALIVE, LOG, TOKEN, Addresses, keeper_lives, read_addresses, token
from jobs.local_ray.keeper import ask
from jobs.settings import SECRETS, Settings

START_SECONDS = 90.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.1
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
        if not keeper_lives(home) and (keeper is None or keeper.poll() is not None):
            if keeper is not None and keeper.returncode != 0:
                raise _did_not_start(home, f"it ended with exit code {keeper.returncode}")
            keeper = _start_keeper(settings, home)
        if time.monotonic() > deadline:
            raise _did_not_start(home, f"it did not answer within {timeout:g} s")
        if cancelled is not None and cancelled.is_set():
            raise RayUnavailable("nobody waits for the local Ray any more")
        time.sleep(LOOK_SECONDS)
    return address


def find_ray(settings: Settings) -> RayAddress | None:
    """The local Ray of these settings if it runs and answers."""
    home = settings.home
    addresses = read_addresses(home)
    if addresses is None or not addresses.gcs or not keeper_lives(home):
        return None
    secret = token(home)
    if ask(addresses.dashboard, "/api/version", secret) is None:
        return None
    return RayAddress(addresses.gcs, addresses.dashboard, secret)


def ray_variables(settings: Settings, address: RayAddress) -> dict[str, str]:
    """The variables by which another process of this machine reaches the local Ray of these settings."""
    return {
        "FEDSIM_RAY_ADDRESS": address.gcs,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(settings.home / TOKEN),
        # As the keeper has it: Ray else looks for a loopback address at the machine's outward one.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def stop_ray(settings: Settings) -> bool:
    """End the local Ray of these settings, and every job that runs on it.

    Returns:
        Whether there was one.

    Raises:
        RayUnavailable: it did not end in time.
    """
    home = settings.home
    addresses = read_addresses(home)
    if addresses is None or not keeper_lives(home):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(addresses.pid, number)
        if _ended(home, addresses, STOP_SECONDS):
            return True
    raise RayUnavailable(f"the local Ray (process {addresses.pid}) did not end", f"see {home / LOG}")


def package_path() -> str:
    """`PYTHONPATH` for processes that Ray starts elsewhere: fedsim's packages, then what stands there now."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def _start_keeper(settings: Settings, home: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | settings.open_environment() | settings.ray_sizes()
    environment["PYTHONPATH"] = package_path()
    environment["FEDSIM_RAY_IDLE"] = str(settings.ray_idle_seconds)
    # What Ray's processes have in their environment, every job on it can read.
    for name in ("FEDSIM_TOKEN", SECRETS, *settings.secrets()):
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


def _ended(home: Path, addresses: Addresses, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while keeper_lives(home) and read_addresses(home) == addresses:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _did_not_start(home: Path, what: str) -> RayUnavailable:
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (home / LOG).read_text("utf-8", errors="replace").splitlines()
    # Only the first line is for everybody.
    told = [f"the local Ray did not start: {what}", "the last lines of its log:", *lines[-TAIL_LINES:]]
    return RayUnavailable("\n".join(told), f"the whole log is {home / LOG}")
