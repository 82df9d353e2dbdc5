"""Hugging Face data sets on disk: a folder of `save_to_disk`, or the cache of a data set of the hub.

A cache has the layout of the package `datasets`: `OWNER___NAME/CONFIG/VERSION/HASH/`. It is in the folder
`huggingface` of a data root, where downloads go, or in the package's own place (`HF_DATASETS_CACHE`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.places import FETCH_HINT, TEXT_EXTRA, DataRoots, leaves_root
from fedsim.errors import DataError, DataNotFound

_CACHE = "huggingface"
_ON_HUB = "hf://datasets/"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


class OpenedDataset(NamedTuple):
    """A data set of the package `datasets`, memory-mapped.

    Attributes:
        folder: the folder of its files.
        parts: the parts by name; a single part without a name is "".
    """

    folder: Path
    parts: Mapping[str, Any]


def open_dataset(places: DataRoots, path: str, config: str | None) -> OpenedDataset:
    """Open a data set on disk; download it if it is missing and downloads are allowed.

    Args:
        places: the data roots.
        path: a folder in a data root, or a name of the hub such as `uoft-cs/cifar10`.
        config: the configuration of a data set of the hub; None if it has a single one.

    Raises:
        SpecError: if the path leads out of the data roots, or the configuration does not exist.
        DataNotFound: if there is no such data set, or the package `datasets` is missing.
        DataError: if its files are damaged.
    """
    library = import_datasets()
    if places.find_path((path,)) is not None or not is_hub_name(path):
        folder = places.resolve_path("hugging_face", path, "save it there with save_to_disk")
        return OpenedDataset(folder, _load_saved(library, folder))
    found = _find_cached(places, path, config)
    if found is None and places.download:
        _download(library, places, path, config)
        found = _find_cached(places, path, config)
    if found is None:
        caches = ", ".join(str(cache) for cache in _list_roots(places.roots))
        message = f"hugging_face: found no folder {path} in the data roots, and no {path} in the caches of "
        raise DataNotFound(message + f"the hub ({caches})", f"save it with save_to_disk, or {FETCH_HINT}")
    return OpenedDataset(found, _load_cached(found, path))


def is_hub_name(path: str) -> bool:
    """Whether a path may be the name of a data set of the hub: OWNER/NAME."""
    return _HUB_NAME.fullmatch(path) is not None and not leaves_root(path)


def awaits_download(places: DataRoots, *, path: str, config: str | None = None, **_: Any) -> bool:
    """Whether a data set is not on disk, and a run would look for it on the hub."""
    if not is_hub_name(path) or places.find_path((path,)) is not None:
        return False
    try:
        return _find_cached(places, path, config) is None
    except DataNotFound:  # the package is missing: opening the data set says so
        return False


def list_caches(roots: Sequence[Path], *, path: str, **_: Any) -> list[Path]:
    """The folders of a data set of the hub in the caches, whether they exist or not."""
    try:
        return [cache / _folder_name(path) for cache in _list_roots(roots)] if is_hub_name(path) else []
    except DataNotFound:
        return []


def import_datasets(module: str = "") -> Any:
    """Import the package `datasets`, or a module of it.

    Raises:
        DataNotFound: if it is not installed.
    """
    try:
        return importlib.import_module(f"datasets{module}")
    except ImportError as error:
        raise DataNotFound("this needs the package 'datasets'", TEXT_EXTRA) from error


def _list_roots(roots: Sequence[Path]) -> list[Path]:
    """The caches, in the order of the search."""
    own = Path(import_datasets(".config").HF_DATASETS_CACHE).expanduser()
    return [*(root.expanduser() / _CACHE for root in roots), own]


def is_in_cache(places: DataRoots, file: str) -> bool:
    """Whether a data set may name this file: it is in a data root, or in a cache of the hub."""
    hub = importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE
    allowed = [*(root.expanduser() for root in places.roots), *_list_roots(places.roots), Path(hub)]
    inside = any(Path(file).resolve().is_relative_to(folder.resolve()) for folder in allowed)
    return inside and "://" not in file


def _folder_name(name: str) -> str:
    owner, short = name.split("/")
    return f"{owner}___{import_datasets('.naming').camelcase_to_snakecase(short)}"


def _find_cached(places: DataRoots, name: str, config: str | None) -> Path | None:
    """The newest folder of a data set of the hub in the first cache that has it; None if there is none."""
    for cache in list_caches(places.roots, path=name):
        found = dict[str, list[Path]]()
        for folder in cache.glob("*/*/*"):
            if (folder / "dataset_info.json").is_file() and folder.suffix != ".incomplete":
                found.setdefault(folder.parts[-3], []).append(folder)
        if config is None and len(found) > 1:
            hint = f"one of: {', '.join(sorted(found))}"
            raise make_spec_error("config", None, f"{cache} has several configurations of {name}", hint)
        wanted = next(iter(found), None) if config is None else config
        if wanted in found:
            return max(found[wanted], key=lambda folder: folder.stat().st_mtime_ns)
        if found and not places.download:
            message = f"{cache} has no such configuration of {name}"
            raise make_spec_error("config", config, message, suggest_name(str(config), found))
    return None


def _load_saved(library: Any, folder: Path) -> Mapping[str, Any]:
    try:
        whole = library.load_from_disk(str(folder))
    except Exception as error:  # the library raises its own, Arrow's and Python's errors for a damaged folder
        raise DataError(f"{folder}: was not written by save_to_disk, or is damaged ({error})") from error
    return whole if isinstance(whole, dict) else {"": whole}


def _load_cached(folder: Path, name: str) -> Mapping[str, Any]:
    """Load a folder of a cache without a look at the network."""
    config, version, key = folder.parts[-3:]
    builder = import_datasets(".packaged_modules.cache.cache").Cache
    try:
        made = builder(
            cache_dir=str(folder.parents[3]),
            dataset_name=name.split("/")[1],
            repo_id=name,
            config_name=config,
            version=version,
            hash=key,
        )
        return dict(made.as_dataset())
    except Exception as error:  # as for a saved folder
        hint = "remove it, and download the data set again"
        raise DataError(f"{folder}: is damaged ({error})", hint) from error


def _download(library: Any, places: DataRoots, name: str, config: str | None) -> None:
    """Download a data set of the hub into the cache of the first data root.

    Raises:
        DataNotFound: if it cannot be downloaded.
        DataError: if it names files that are not on the hub.
    """
    cache = places.make_download_root("hugging_face") / _CACHE
    try:
        # Without this prefix, a folder of the same name in the working directory would be read.
        builder = library.load_dataset_builder(f"{_ON_HUB}{name}", config, cache_dir=str(cache))
        foreign = _find_foreign_file(builder)
        if foreign is None:
            builder.download_and_prepare()
    except Exception as error:  # the library and its clients raise many kinds of errors
        reason = " ".join(str(error).split())
        hint = "check its name and its configuration, or save it into a data root with save_to_disk"
        raise DataNotFound(f"{name}: cannot be downloaded from the hub ({reason})", hint) from error
    if foreign is not None:
        message = f"{name}: names the file {foreign}, which is not on the hub"
        raise DataError(message, "take a data set that has all its files, or save it into a data root")


def _find_foreign_file(builder: Any) -> str | None:
    """Find a data file that is not on the hub: a README may name any path of this machine, or any address."""
    parts = getattr(builder.config, "data_files", None) or {}
    return next((str(file) for files in parts.values() for file in files if not _is_on_hub(str(file))), None)


def _is_on_hub(file: str) -> bool:
    return file.startswith(_ON_HUB) and ".." not in file.split("/")
