"""What a Ray of this machine may use: how many CPUs, and which directory its sockets fit in."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.settings import Settings

QUOTAS = Path("/sys/fs/cgroup")
"""Where the kernel says how much of the CPUs a container may use."""

TEMPORARY_PREFIX = "fedsim-ray-"

LONGEST_DIRECTORY = 36
"""Bytes of a temporary directory in which Ray finds room for its sockets: below it come up to 70 (`ray`, the
session with its time and process, the socket's name), and the kernel allows 107 in all."""


def count_cpus(settings: Settings, quotas: Path = QUOTAS) -> int:
    """The CPUs that a Ray started here has: as the settings say, or those that this process may use.

    Args:
        settings: whose number comes first.
        quotas: where the limits of a container are, of either version of the kernel's control groups.
    """
    if settings.ray_num_cpus is not None:
        return settings.ray_num_cpus
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(_read_cpu_quota(quotas) or allowed)))


def _read_cpu_quota(folder: Path) -> float | None:
    """The CPUs' worth of time that the container has; None where it has all."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / file).read_text("ascii") for file in files).split()
            # "max", and -1 in the older version, say that there is no limit.
            return max(1.0, float(quota) / float(period)) if quota not in ("max", "-1") else None
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return None


def find_short_directory() -> str | None:
    """Where Ray's directory goes, for the paths of its sockets to be short; None where that is not open."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def sockets_fit() -> bool:
    """Whether the paths of Ray's sockets are short enough in the directory that it takes by itself."""
    taken = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return len(os.fsencode(taken)) <= LONGEST_DIRECTORY
