"""The peak memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


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
