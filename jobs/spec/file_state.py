"""Whether the files of a data set are still those that were read: a glance of some milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from stat import S_ISDIR

DEPTH = 2
"""Levels of a data set's folder that are looked at for changes."""

MOST_ENTRIES = 2_000
"""Files and folders of a data set that are looked at for changes: some milliseconds, while somebody types."""


def compute_file_state(places: Iterable[Path]) -> int:
    """A number that is another one once files were added, replaced or removed at these places.

    Looked at are size and time of change of each, and of what folders hold down to the second level. That is
    the folders of the classes of an image folder, whose own times tell of files that come and go; what is
    written anew in place below them goes unnoticed, as do the files beyond the first `MOST_ENTRIES`.
    """
    told, folders = list[tuple[str, int, int]](), list[str]()

    def add_entry(path: str, stat: Callable[[], os.stat_result], into: list[str]) -> None:
        # What is not there, or no path at all, is for the loader to refuse.
        with suppress(OSError, ValueError):
            found = stat()
            told.append((path, found.st_mtime_ns, found.st_size))
            if S_ISDIR(found.st_mode):
                into.append(path)

    for place in places:
        add_entry(str(place), place.stat, folders)
    for _ in range(DEPTH):
        inside = list[str]()
        for entry in islice(chain.from_iterable(map(_entries, folders)), max(0, MOST_ENTRIES - len(told))):
            add_entry(entry.path, entry.stat, inside)
        folders = inside
    return hash(tuple(told))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """What a folder holds, but hidden things: what is decoded is kept in such."""
    with suppress(OSError), os.scandir(folder) as found:
        yield from (entry for entry in found if not entry.name.startswith("."))
