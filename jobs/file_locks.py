"""Locks of files: the kernel frees a lock when its process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import SettingsError


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Lock a file, and yield whether the lock was free; it always is on a disk without locks."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:  # some network disks have no locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield True


@contextmanager
def lock_folder(folder: Path, work: str) -> Iterator[None]:
    """Keep a second process out of a folder in which both would write the same files.

    Args:
        folder: exists.
        work: what works there, for the message, such as "sweep".

    Raises:
        SettingsError: another process works in it.
    """
    with lock_file(folder / ".lock") as is_free:
        if not is_free:
            hint = "wait for it, or name another folder: --out DIR"
            raise SettingsError(f"another {work} works in {folder}", hint)
        yield


def is_locked(path: Path) -> bool:
    """Return whether somebody holds the lock of a file; False on a disk without locks."""
    with path.open("rb") as file:
        try:
            # Shared: two who ask at once do not take each other for a holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # some network disks have no locks
            return False
    return False
