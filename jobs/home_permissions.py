"""Keeping what lies in fedsim's home from other users of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PRIVATE_UMASK = 0o077

PATTERNS = ("fedsim.db*", "serve.*", "ray.*", "api.alive", "jobs", "bugs")
"""What fedsim makes in its home; `jobs` and `bugs` are folders, and closed with all that is in them."""


def keep_private(home: Path) -> None:
    """Have what this process makes be for its user alone, and so close what an earlier version left open.

    Args:
        home: whose own files are closed; what belongs to somebody else stays as it is.
    """
    os.umask(PRIVATE_UMASK)
    for path in (found for pattern in PATTERNS for found in home.glob(pattern)):
        with contextlib.suppress(OSError):
            mode = path.stat().st_mode & 0o777
            if mode & PRIVATE_UMASK and not path.is_symlink():
                path.chmod(mode & ~PRIVATE_UMASK)
