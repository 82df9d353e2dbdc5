"""A quick check, in milliseconds, whether the files of a data set have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from stat import S_ISDIR

DEPTH = 2
"""Levels of a data set's folder that are checked for changes."""

MOST_ENTRIES = 2_000
"""The most files and folders that are checked for changes: the check takes a few milliseconds."""


def compute_file_state(places: Iterable[Path]) -> int:
    """Compute a number that changes if files are added, replaced or removed at these places.

    The number depends on the size and the modification time of each place, and of the content of folders down
    to the second level. In an image folder these are the class folders, whose times change if files are added
    or removed. A file that is overwritten below them goes unnoticed, and so do files after `MOST_ENTRIES`.
    """
    entries, folders = list[tuple[str, int, int]](), list[str]()

    def add_entry(path: str, stat: Callable[[], os.stat_result], into: list[str]) -> None:
        # The loader reports a missing file, and a text that is no path.
        with suppress(OSError, ValueError):
            found = stat()
            entries.append((path, found.st_mtime_ns, found.st_size))
            if S_ISDIR(found.st_mode):
                into.append(path)

    for place in places:
        add_entry(str(place), place.stat, folders)
    for _ in range(DEPTH):
        inside = list[str]()
        left = max(0, MOST_ENTRIES - len(entries))
        for entry in islice(chain.from_iterable(map(_list_entries, folders)), left):
            add_entry(entry.path, entry.stat, inside)
        folders = inside
    return hash(tuple(entries))


def _list_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder without hidden ones, which hold caches of decoded data."""
    with suppress(OSError), os.scandir(folder) as found:
        yield from (entry for entry in found if not entry.name.startswith("."))
