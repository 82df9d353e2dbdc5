"""A cache of decoded data beside its files, for a fast second start.

The key of an entry is the content of the files and the recipe that decoded them. Reading every file for the
key would cost most of the cache's gain. Therefore the folder with a list of names, sizes and times points to
the key while it is unchanged, as in version control systems. Files that were only touched or copied are read
once more and found again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsim.base.files import open_aside
from fedsim.data.damage import UNREADABLE
from fedsim.data.dataset import Array
from fedsim.data.leftovers import remove_leftovers
from fedsim.data.places import DataRoots

_LOG = logging.getLogger(__name__)
_FOLDER = ".fedsim-cache"
_TEMPORARY_PREFIX = "making-"


def load_or_make(
    places: DataRoots,
    source: Path,
    files: Sequence[Path],
    recipe: str,
    make: Callable[[], Mapping[str, Array]],
) -> dict[str, Array]:
    """Return the arrays of `make`, from the cache if these files were decoded with this recipe before.

    Args:
        places: data roots for the cache, if the folder of the data is not writable.
        source: the data set's folder; the cache is beside it.
        files: all files on which the arrays depend, inside `source`.
        recipe: name of the loader with every parameter that changes the arrays.
        make: decodes the files.

    Returns:
        The arrays by name; from the cache they are read-only and mapped from disk.
    """
    folders = [source.parent / _FOLDER, *(root.expanduser() / _FOLDER for root in places.roots)]
    # With the folder and ctime: two sets, unpacked or edited, may have the same names, sizes and mtimes.
    glance = _hash_lines(
        f"{recipe} {source.resolve()}",
        (
            f"{_relative_name(f, source)} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
            for f, s in _stat_files(files)
        ),
    )
    for folder in folders:
        if (known := _load_pointed_entry(folder, glance)) is not None:
            return known
    content = _hash_lines(recipe, _hash_contents(files, source))
    for folder in folders:
        if (known := _load_entry(folder / content)) is not None:
            _write_pointer(folder, glance, content)
            return known
    _LOG.info("decoding %d files of %s, once", len(files), source)
    made = dict(make())
    for folder in folders:
        if _store_entry(folder, content, made):
            _write_pointer(folder, glance, content)
            break
    return made


def _stat_files(files: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    return ((file, file.stat()) for file in files)


def _relative_name(file: Path, source: Path) -> str:
    return file.relative_to(source).as_posix()


def _hash_contents(files: Sequence[Path], source: Path) -> Iterator[str]:
    for file in files:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256")
        yield f"{_relative_name(file, source)} {found.hexdigest()}"


def _hash_lines(recipe: str, lines: Iterator[str]) -> str:
    total = hashlib.sha256(recipe.encode())
    for line in lines:
        total.update(b"\n" + line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:32]


def _load_pointed_entry(folder: Path, glance: str) -> dict[str, Array] | None:
    try:
        return _load_entry(folder / (folder / f"{glance}.key").read_text().strip())
    except (OSError, UnicodeDecodeError):
        return None


def _load_entry(entry: Path) -> dict[str, Array] | None:
    """The arrays of a cache entry; None if it is absent or damaged: then it is made again."""
    try:
        names: list[str] = json.loads((entry / "arrays.json").read_text())
        # np.asarray: a plain array over the mapped file; views of it would otherwise be memmaps too.
        return {name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in names}
    except UNREADABLE:
        return None


def _write_pointer(folder: Path, glance: str, content: str) -> None:
    try:
        with open_aside(folder / f"{glance}.key") as file:
            file.write(content.encode())
    except OSError:
        _LOG.debug("cannot write into %s", folder)


def _store_entry(folder: Path, content: str, arrays: Mapping[str, Array]) -> bool:
    """Write an entry aside and rename it; return whether it is in place, from this or another process."""
    try:
        folder.mkdir(exist_ok=True)
        remove_leftovers(folder, _TEMPORARY_PREFIX)
        aside = Path(tempfile.mkdtemp(dir=folder, prefix=_TEMPORARY_PREFIX))
    except OSError:
        return False
    try:
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array, allow_pickle=False)
        (aside / "arrays.json").write_text(json.dumps(list(arrays)))
        if _load_entry(folder / content) is None:
            shutil.rmtree(folder / content, ignore_errors=True)
            aside.replace(folder / content)
        return True
    except OSError as error:
        if _load_entry(folder / content) is not None:  # another process was faster
            return True
        _LOG.warning("cannot store the decoded data in %s: %s", folder, error)
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
