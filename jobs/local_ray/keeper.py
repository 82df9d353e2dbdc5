"""`python -m jobs.local_ray.keeper`: the process that runs the local Ray, and ends it when nobody needs it.

The keeper is detached from the process that started it, so that jobs survive a killed API. It ends, together
with Ray, in five cases: Ray ends; Ray goes on without its node; the keeper gets SIGTERM; `ray.json` is gone
or names another keeper; or for `ray_idle_seconds` no API touched `api.alive` and Ray has no job. In the first
two cases the service starts another keeper.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.base.memory_usage import machine_bytes
from jobs.file_locks import lock_file
from jobs.home_permissions import PRIVATE_UMASK
from jobs.local_ray.cluster import JOBS, NODES, fetch_living_nodes
from jobs.local_ray.fork_server_process import ForkServerProcess, end_with_parent
from jobs.local_ray.keeper_files import (
    ADDRESSES,
    ALIVE,
    LOCK,
    Addresses,
    make_ray_environment,
    read_addresses,
    read_or_make_token,
    write_addresses,
)
from jobs.local_ray.machine import (
    RAY_FOLDER,
    TEMPORARY_PREFIX,
    count_cpus,
    find_free_ports,
    find_short_directory,
    make_private_directory,
)
from jobs.settings import Settings

GIBIBYTE = 2**30
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0
NODE_CHECK_SECONDS = 5.0
ENDED_STATUSES = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


def main() -> int:
    """Run a Ray; return 0 if it was ended on purpose, and 1 if it ended by itself or never started."""
    settings = Settings.from_env()
    # The address and the token of another Ray must not reach this Ray and its drivers.
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(name, None)
    os.umask(PRIVATE_UMASK)
    home = settings.make_home()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with lock_file(home / LOCK) as got:
        if not got:
            sys.stderr.write("another keeper holds the local Ray already\n")
            return 0
        _remove_remains(home)
        return _run_ray(settings, home, stop)


def _run_ray(settings: Settings, home: Path, stop: threading.Event) -> int:
    temporary = str(make_private_directory(find_short_directory()))
    ports = find_free_ports(3)
    addresses = Addresses(os.getpid(), temporary, f"http://127.0.0.1:{ports[0]}")
    write_addresses(home, addresses)
    ray = _start_ray(settings, home, addresses, ports)
    forks = ForkServerProcess(Path(temporary), settings.runner_idle_seconds)
    try:
        return _watch_ray(settings, home, addresses, ray, forks, stop)
    finally:
        forks.end()
        _end_ray(ray)
        shutil.rmtree(temporary, ignore_errors=True)
        if _is_mine(home):
            (home / ADDRESSES).unlink(missing_ok=True)


def _start_ray(
    settings: Settings, home: Path, addresses: Addresses, ports: list[int]
) -> subprocess.Popen[bytes]:
    """Start the head of Ray on loopback, without the parts of Ray that fedsim does not need."""
    dashboard, metrics, client = ports
    options = {
        "--port": 0,
        "--node-ip-address": "127.0.0.1",
        "--dashboard-host": "127.0.0.1",
        "--dashboard-port": dashboard,
        "--dashboard-agent-listen-port": 0,
        "--ray-client-server-port": client,
        "--min-worker-port": 0,
        "--max-worker-port": 0,
        "--include-log-monitor": "false",
        "--object-store-memory": object_store_bytes(),
        "--temp-dir": Path(addresses.temporary, RAY_FOLDER),
        "--num-cpus": count_cpus(settings),
        "--num-gpus": settings.ray_num_gpus,
    }
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *given]
    environment = os.environ | make_ray_environment(home)
    environment |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "DASHBOARD_METRIC_PORT": str(metrics),
        # By default Ray waits half a minute for running jobs before it ends.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    read_or_make_token(home)
    return subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=lambda: end_with_parent(signal.SIGTERM)
    )


def _watch_ray(
    settings: Settings,
    home: Path,
    addresses: Addresses,
    ray: subprocess.Popen[bytes],
    forks: ForkServerProcess,
    stop: threading.Event,
) -> int:
    """Wait for a reason to end, and return the exit code."""
    ready, last_needed, last_check = False, time.monotonic(), time.monotonic()
    while not stop.wait(POLL_SECONDS if not ready else 1.0):
        forks.start_if_asked()
        if ray.poll() is not None:
            sys.stderr.write(f"Ray ended with exit code {ray.returncode}\n")
            return 1
        if not _is_mine(home):
            sys.stderr.write("ray.json is gone or names another keeper: ending\n")
            return 0
        if ready and time.monotonic() - last_check > NODE_CHECK_SECONDS:
            last_check = time.monotonic()
            if has_lost_its_node(addresses, read_or_make_token(home)):
                sys.stderr.write("Ray has lost its node, and does not end by itself: ending\n")
                return 1
        if not ready:
            ready = _publish_address(home, addresses)
        elif (age := _measure_age(home / ALIVE)) < settings.ray_idle_seconds:
            last_needed = max(last_needed, time.monotonic() - age)
        elif time.monotonic() - last_needed > settings.ray_idle_seconds:
            if not forks.has_runners() and not has_running_jobs(addresses, read_or_make_token(home)):
                sys.stderr.write("no API and no job needs Ray any more: ending\n")
                return 0
            last_needed = time.monotonic()
    return 0


def _publish_address(home: Path, addresses: Addresses) -> bool:
    """Write the address from Ray's directory to `ray.json` once Ray answers; return whether it does."""
    file = Path(addresses.temporary, RAY_FOLDER, "ray_current_cluster")
    gcs = file.read_text("ascii").strip() if file.exists() else ""
    if gcs and fetch_json(addresses.dashboard, "/api/version", read_or_make_token(home)) is not None:
        write_addresses(home, replace(addresses, gcs=gcs))
        return True
    return False


def _is_mine(home: Path) -> bool:
    written = read_addresses(home)
    return written is not None and written.pid == os.getpid()


def _measure_age(file: Path) -> float:
    """Return the seconds since a file was touched; infinity if it is gone."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return math.inf


def has_running_jobs(addresses: Addresses, secret: str) -> bool:
    """Return whether Ray has a job that has not ended; True if Ray does not answer."""
    found = fetch_json(addresses.dashboard, JOBS, secret)
    return found is None or any(job.get("status") not in ENDED_STATUSES for job in found)


def has_lost_its_node(addresses: Addresses, secret: str) -> bool:
    """Return whether Ray answers that none of its nodes is alive.

    `ray start --block` ends with its raylet, unless the raylet ends in an orderly way, as it does after an
    agent of the node was killed.
    """
    found = fetch_json(addresses.dashboard, NODES, secret)
    try:
        return found is not None and not fetch_living_nodes(lambda _: found)
    except (KeyError, TypeError):
        return False  # an answer of another kind, such as that the GCS does not answer


def fetch_json(dashboard: str, path: str, secret: str) -> Any:
    """Return the JSON answer of Ray's dashboard; None without an answer."""
    request = urllib.request.Request(dashboard + path, headers={"Authorization": f"Bearer {secret}"})
    # A proxy of the environment must not be used for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError, ValueError), opener.open(request, timeout=5) as answer:
        return json.load(answer)
    return None


def _end_ray(ray: subprocess.Popen[bytes]) -> None:
    """End Ray: ask its process to end, then kill the whole process group."""
    if ray.poll() is None:
        ray.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            ray.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(ray.pid, signal.SIGKILL)
    ray.wait()


def object_store_bytes() -> int:
    """Return the object store's size: a quarter of memory, at most 2 GiB and the free part of /dev/shm."""
    size = min(2 * GIBIBYTE, machine_bytes() // 4)
    with contextlib.suppress(OSError):
        size = min(size, int(shutil.disk_usage("/dev/shm").free * 0.9))
    # Ray refuses a store below 75 MiB.
    return max(size, 80 * 2**20)


def _remove_remains(home: Path) -> None:
    """Remove the files of a killed keeper, whose Ray has ended too."""
    left = read_addresses(home)
    if left is not None and Path(left.temporary).name.startswith(TEMPORARY_PREFIX):
        shutil.rmtree(left.temporary, ignore_errors=True)
    (home / ADDRESSES).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
