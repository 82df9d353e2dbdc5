"""The memory that this process has used, and the memory that it may use; the name of the processor."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path

from fedsim.errors import DataError

STATUS = Path("/proc/self/status")

MEMORY = Path("/proc/meminfo")

OOM_SCORE = Path("/proc/self/oom_score_adj")

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def peak_private_bytes() -> int:
    """Return the peak private memory of this process so far, in bytes.

    On Linux, memory shared with other processes (an object store, files, libraries) is left out. Elsewhere
    the peak is that of the whole resident set.
    """
    if not STATUS.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    kilobytes = _status(STATUS.read_text())
    mapped = kilobytes.get("RssFile", 0) + kilobytes.get("RssShmem", 0)
    # Shared memory only grows: now it is at least as large as it was at the peak.
    return 1024 * max(kilobytes.get("RssAnon", 0), kilobytes["VmHWM"] - mapped)


def _status(text: str) -> dict[str, int]:
    lines = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in lines}


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" is no limit
        total = min(total, int(CONTAINER_LIMIT.read_text("ascii")))
    return total


def free_bytes() -> int:
    """Return the memory that new processes can use without swapping, in bytes; on Linux only, else all."""
    if not MEMORY.exists():
        return machine_bytes()
    return 1024 * _status(MEMORY.read_text())["MemAvailable"]


def end_first_without_memory() -> None:
    """Let the kernel (Linux) end this process before others when memory runs out, as for workers of Ray."""
    with suppress(OSError):
        OOM_SCORE.write_text("1000", "ascii")


def require_memory(what: str, size: int) -> None:
    """Refuse data that is larger than the memory of this process, before it is unpacked.

    Args:
        what: the data, for the message.
        size: its bytes in memory.

    Raises:
        DataError: if it is larger than the limit of this process, or than the machine.
    """
    limit, total = resource.getrlimit(resource.RLIMIT_DATA)[0], machine_bytes()
    if limit != resource.RLIM_INFINITY and size > limit:
        most, hint = limit, "use less data; or let the operator of the service raise FEDSIM_CHECK_MEMORY"
    elif size > total:
        most, hint = total, "use less data, or a machine with more memory"
    else:
        return
    message = f"{what} takes {size / 1e9:,.3g} GB of memory, and at most {most / 1e9:,.3g} GB may be used"
    raise DataError(message, hint)


def name_processor() -> str:
    """Name the model of the processor, which decides the last bits of results; "" if it is not known."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text("utf-8").splitlines() if about.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
