"""Permissions that keep fedsim's home private to its user."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fedsim.errors import SettingsError

PRIVATE_UMASK = 0o077

OTHERS_WRITE = 0o022

PATTERNS = ("fedsim.db*", "serve.*", "ray.*", "api.alive", "jobs", "bugs")
"""The names that fedsim makes in its home; closing the folders `jobs` and `bugs` closes their content."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Make the files private that this process makes meanwhile."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def keep_private(home: Path) -> None:
    """Make all new files of this process private, and close files that an earlier version left open.

    Args:
        home: its files are closed; files of another user stay as they are.

    Raises:
        SettingsError: if every user may write into the home, and it belongs to another user.
    """
    os.umask(PRIVATE_UMASK)
    _close_folder(home)
    for path in (found for pattern in PATTERNS for found in home.glob(pattern)):
        with contextlib.suppress(OSError):
            mode = path.stat().st_mode & 0o777
            if mode & PRIVATE_UMASK and not path.is_symlink():
                path.chmod(mode & ~PRIVATE_UMASK)


def _close_folder(home: Path) -> None:
    """Let only its user write into a home: others could put their own database or token there."""
    found = home.stat()
    if found.st_uid == os.geteuid():
        if found.st_mode & OTHERS_WRITE:
            with contextlib.suppress(OSError):
                home.chmod(found.st_mode & 0o777 & ~OTHERS_WRITE)
    elif found.st_mode & stat.S_IWOTH:
        raise SettingsError(
            f"every user may write into FEDSIM_HOME={str(home)!r}, which belongs to user {found.st_uid}",
            "set FEDSIM_HOME to a folder of your own",
        )
