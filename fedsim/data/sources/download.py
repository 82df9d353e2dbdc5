"""Downloads with torchvision's data set classes, which know the addresses and the checksums."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.leftovers import remove_leftovers
from fedsim.data.places import DataRoots
from fedsim.errors import DataNotFound

_ASIDE = ".fetching-"


def find_or_download(
    places: DataRoots,
    name: str,
    candidates: Sequence[str],
    get: str,
    what: str,
    *parts: Mapping[str, Any],
    folder: str = "",
) -> Path:
    """Return the place of a data set in the data roots; download it first if it is missing and may be.

    Args:
        places: the data roots.
        name: of the data set, for messages.
        candidates: paths relative to a data root.
        get: says how to get the data set.
        what: torchvision's class.
        parts: as for `download_dataset`.
        folder: as for `download_dataset`.

    Raises:
        DataNotFound: if it is in no data root and may not be downloaded, or if the download fails.
    """
    if places.download and places.find_path(candidates) is None:
        download_dataset(name, places.make_download_root(name), what, *parts, folder=folder)
    return places.require_path(name, candidates, get)


def download_dataset(name: str, root: Path, what: str, *parts: Mapping[str, Any], folder: str = "") -> None:
    """Download a whole data set into a root, in torchvision's layout; after an error nothing is left there.

    Args:
        name: of the data set, for the message.
        root: the target.
        what: torchvision's class.
        parts: arguments of that class, if it has to be called once for each part; else none.
        folder: inside the root, for a class that makes no folder of its own.

    Raises:
        DataNotFound: if the download fails.
    """
    prepare_torchvision()
    dataset: Any = getattr(importlib.import_module("torchvision.datasets"), what)
    remove_leftovers(root, _ASIDE)
    try:
        # Into a temporary folder first: an incomplete data set in the root would never be downloaded again.
        with tempfile.TemporaryDirectory(dir=root, prefix=_ASIDE) as aside:
            for arguments in parts or ({},):
                dataset(str(Path(aside, folder)), download=True, **arguments)
            _move_into_root(Path(aside), root)
    except Exception as error:  # torchvision's helpers, such as gdown, raise their own errors
        reason = " ".join(str(error).split())
        raise DataNotFound(
            f"{name}: cannot be downloaded ({reason})", f"put it into {root} by hand"
        ) from error


def _move_into_root(aside: Path, root: Path) -> None:
    """Move the downloaded files into the root, without replacing files that are there."""
    for made in aside.iterdir():
        target = root / made.name
        if not target.exists():
            made.replace(target)
        elif made.is_dir() and target.is_dir():
            _move_into_root(made, target)
