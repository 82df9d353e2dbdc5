"""Decoded data kept beside the files it came from, so that the second start is instant.

An entry is keyed by the content of the files and by the recipe that decoded them. Reading every file to find
the key would cost most of what the cache saves, so a list of names, sizes and times of change points to the
key while it still holds, as version control systems do: files that were merely touched or copied are read
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

from fedsim.data.damage import UNREADABLE
from fedsim.data.dataset import Array
from fedsim.data.leftovers import remove_leftovers
from fedsim.data.places import DataRoots

_LOG = logging.getLogger(__name__)
_FOLDER = ".fedsim-cache"
_ASIDE = "making-"


def load_or_make(
    places: DataRoots,
    source: Path,
    files: Sequence[Path],
    recipe: str,
    make: Callable[[], Mapping[str, Array]],
) -> dict[str, Array]:
    """The arrays that `make` returns, from the cache when these files were decoded by this recipe before.

    Args:
        places: whose roots hold the cache where the folder of the data is not writable.
        source: the data set's folder; the cache lies beside it.
        files: everything that the arrays depend on, all inside `source`.
        recipe: the loader with every parameter that changes what it makes.
        make: decodes.

    Returns:
        The arrays by name, read-only and mapped from disk where they come from the cache.
    """
    folders = [source.parent / _FOLDER, *(root.expanduser() / _FOLDER for root in places.roots)]
    glance = _digest(
        recipe, (f"{_relative(f, source)} {s.st_size} {s.st_mtime_ns}" for f, s in _stats(files))
    )
    for folder in folders:
        if (known := _load_pointed_entry(folder, glance)) is not None:
            return known
    content = _digest(recipe, _contents(files, source))
    for folder in folders:
        if (known := _entry(folder / content)) is not None:
            _write_pointer(folder, glance, content)
            return known
    _LOG.info("decoding %d files of %s, once", len(files), source)
    made = dict(make())
    for folder in folders:
        if _store_entry(folder, content, made):
            _write_pointer(folder, glance, content)
            break
    return made


def _stats(files: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    return ((file, file.stat()) for file in files)


def _relative(file: Path, source: Path) -> str:
    return file.relative_to(source).as_posix()


def _contents(files: Sequence[Path], source: Path) -> Iterator[str]:
    for file in files:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256")
        yield f"{_relative(file, source)} {found.hexdigest()}"


def _digest(recipe: str, lines: Iterator[str]) -> str:
    total = hashlib.sha256(recipe.encode())
    for line in lines:
        total.update(b"\n" + line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:32]


def _load_pointed_entry(folder: Path, glance: str) -> dict[str, Array] | None:
    try:
        return _entry(folder / (folder / f"{glance}.key").read_text().strip())
    except (OSError, UnicodeDecodeError):
        return None


def _entry(entry: Path) -> dict[str, Array] | None:
    """The arrays of a cache entry; None when it is absent or damaged, in which case it is made again."""
    try:
        names: list[str] = json.loads((entry / "arrays.json").read_text())
        # np.asarray: a plain array over the mapped file, since the memmap type would follow it everywhere.
        return {name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in names}
    except UNREADABLE:
        return None


def _write_pointer(folder: Path, glance: str, content: str) -> None:
    try:
        _write_aside(folder / f"{glance}.key", content)
    except OSError:
        _LOG.debug("cannot write into %s", folder)


def _write_aside(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.replace(path)


def _store_entry(folder: Path, content: str, arrays: Mapping[str, Array]) -> bool:
    """Writes an entry aside and renames it; whether that worked, here or in another process meanwhile."""
    try:
        folder.mkdir(exist_ok=True)
        remove_leftovers(folder, _ASIDE)
        aside = Path(tempfile.mkdtemp(dir=folder, prefix=_ASIDE))
    except OSError:
        return False
    try:
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array, allow_pickle=False)
        (aside / "arrays.json").write_text(json.dumps(list(arrays)))
        if _entry(folder / content) is None:
            shutil.rmtree(folder / content, ignore_errors=True)
            aside.replace(folder / content)
        return True
    except OSError as error:
        if _entry(folder / content) is not None:  # another process was faster
            return True
        _LOG.warning("the decoded data is not kept in %s: %s", folder, error)
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
