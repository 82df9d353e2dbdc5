"""Limits of this machine for a local Ray: its CPUs, and a directory with a path short enough for sockets."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.settings import Settings

QUOTAS = Path("/sys/fs/cgroup")
"""The folder in which the kernel shows the CPU limits of a container."""

TEMPORARY_PREFIX = "fedsim-ray-"

LONGEST_DIRECTORY = 36
"""The longest path of a temporary directory for Ray, in bytes. The kernel allows 107 bytes for the path of a
socket, and Ray appends up to 70: `ray`, the session with its time and process, and the socket's name."""


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


def sockets_fit() -> bool:
    """Return whether the paths of Ray's sockets are short enough in Ray's default directory."""
    taken = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return len(os.fsencode(taken)) <= LONGEST_DIRECTORY
