"""Folders that something was made in, and that nobody removed because the process was killed."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

_DAY = 86_400.0


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Removes the folders of this prefix that nobody has written into for a day.

    A younger one may be that of a process that is still at work, here or on another machine.
    """
    for left in folder.glob(f"{prefix}*"):
        # What another process removes meanwhile, or keeps from being read, is left to it.
        with suppress(OSError):
            if left.is_dir() and _last_write_time(left) < time.time() - _DAY:
                shutil.rmtree(left, ignore_errors=True)


def _last_write_time(folder: Path) -> float:
    """When something in this folder was written last."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
