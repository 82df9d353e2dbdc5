"""Temporary folders of killed processes, and their removal."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

_DAY = 86_400.0


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the folders with this prefix in which nothing was written for a day.

    A younger folder may belong to a running process, on this machine or another one.
    """
    for left in folder.glob(f"{prefix}*"):
        # Another process may remove a folder meanwhile, or forbid access to it.
        with suppress(OSError):
            if left.is_dir() and _last_write_time(left) < time.time() - _DAY:
                shutil.rmtree(left, ignore_errors=True)


def _last_write_time(folder: Path) -> float:
    """The time of the last write in this folder."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
