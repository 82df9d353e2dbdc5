"""Permissions that keep fedsim's home private to its user."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PRIVATE_UMASK = 0o077

PATTERNS = ("fedsim.db*", "serve.*", "ray.*", "api.alive", "jobs", "bugs")
"""The names that fedsim makes in its home; closing the folders `jobs` and `bugs` closes their content."""


def keep_private(home: Path) -> None:
    """Make all new files of this process private, and close files that an earlier version left open.

    Args:
        home: its files are closed; files of another user stay as they are.
    """
    os.umask(PRIVATE_UMASK)
    for path in (found for pattern in PATTERNS for found in home.glob(pattern)):
        with contextlib.suppress(OSError):
            mode = path.stat().st_mode & 0o777
            if mode & PRIVATE_UMASK and not path.is_symlink():
                path.chmod(mode & ~PRIVATE_UMASK)
