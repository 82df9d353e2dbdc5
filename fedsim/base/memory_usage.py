"""How much memory this process has needed."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_private_bytes() -> int:
    """The most memory that this process has had for itself so far, in bytes.

    Data that it maps together with others (an object store, files, libraries) is left out, as far as the
    system tells: on Linux. Elsewhere the whole resident set counts.
    """
    if not STATUS.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    kilobytes = _status(STATUS.read_text())
    mapped = kilobytes.get("RssFile", 0) + kilobytes.get("RssShmem", 0)
    # What is mapped only grows, so what is mapped now is at least what was mapped at the peak.
    return 1024 * max(kilobytes.get("RssAnon", 0), kilobytes["VmHWM"] - mapped)


def _status(text: str) -> dict[str, int]:
    lines = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in lines}
