"""What this machine has for a local Ray: CPUs, ports, and a private directory whose path fits sockets."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fedsim.errors import SettingsError
from jobs.home_permissions import PRIVATE_UMASK
from jobs.settings import Settings

QUOTAS = Path("/sys/fs/cgroup")
"""The folder in which the kernel shows the CPU limits of a container."""

TEMPORARY_PREFIX = "fedsim-"

RAY_FOLDER = "r"
"""The folder of Ray in the private directory: Ray opens it, and its logs and sockets, to all users."""

LONGEST_DIRECTORY = 40
"""The longest path of Ray's folder, in bytes. The kernel allows 107 bytes for the path of a socket, and Ray
appends up to 66: the session with its time and process, and the socket's name."""

LONGEST_PARENT = LONGEST_DIRECTORY - len(f"/{TEMPORARY_PREFIX}12345678/{RAY_FOLDER}")
"""The longest path of a directory in which a private directory can be made, in bytes."""

_HINT = f"set TMPDIR to a directory of at most {LONGEST_PARENT} bytes on a disk that keeps permissions"


def find_free_ports(count: int) -> list[int]:
    """Find ports of loopback that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def count_cpus(settings: Settings, quotas: Path = QUOTAS) -> int:
    """Return the CPUs for a local Ray: the settings' number, or the CPUs that this process may use.

    Args:
        settings: `ray_num_cpus` comes first.
        quotas: the folder with the limits of a container, for version 1 or 2 of the kernel's control groups.
    """
    if settings.ray_num_cpus is not None:
        return settings.ray_num_cpus
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(_read_cpu_quota(quotas) or allowed)))


def _read_cpu_quota(folder: Path) -> float | None:
    """Return the CPU limit of the container, in CPUs; None without a limit."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / file).read_text("ascii") for file in files).split()
            # "max" (version 2) and -1 (version 1) mean no limit.
            return max(1.0, float(quota) / float(period)) if quota not in ("max", "-1") else None
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return None


def find_short_directory() -> str | None:
    """Return a directory with a short path for Ray's sockets; None if it is not writable."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def find_user_directory() -> str | None:
    """Return the directory of `RAY_TMPDIR` or `TMPDIR`; a short one if its path is too long for sockets."""
    chosen = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR")
    return chosen if chosen and len(os.fsencode(chosen)) <= LONGEST_PARENT else find_short_directory()


def make_private_directory(parent: str | None) -> Path:
    """Make a new directory that only this user can enter, for Ray's own folder.

    Args:
        parent: where to make it; None is the system's temporary directory.

    Raises:
        SettingsError: if the directory cannot be made, or is open to others, on a disk without permissions.
    """
    try:
        made = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent))
    except OSError as error:
        raise SettingsError(f"no directory can be made in {parent}: {error.strerror}", _HINT) from error
    try:
        check_private_directory(made)
    except SettingsError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def check_private_directory(path: Path) -> None:
    """Check that a directory is this user's own, no link, and closed to others.

    Raises:
        SettingsError: if it is not.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"{path} is not a directory, so Ray does not use it", _HINT)
    if found.st_uid != os.geteuid():
        raise SettingsError(f"{path} belongs to user {found.st_uid}, so Ray does not use it", _HINT)
    if mode := stat.S_IMODE(found.st_mode) & PRIVATE_UMASK:
        raise SettingsError(f"{path} is open to other users (mode {mode:03o}), so Ray does not use it", _HINT)
