"""Downloads through torchvision's own data set classes, which know the addresses and the checksums."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.leftovers import remove_leftovers
from fedsim.errors import DataNotFound

_ASIDE = ".fetching-"


def download_dataset(name: str, root: Path, what: str, *parts: Mapping[str, Any], folder: str = "") -> None:
    """Downloads a data set into a root, in torchvision's layout: all of it or nothing.

    Args:
        name: of the data set, for the message.
        root: where to.
        what: torchvision's class.
        parts: arguments of that class, where it has to be called once for each part; else none.
        folder: inside the root, for a class that makes none of its own.

    Raises:
        DataNotFound: it cannot be had now.
    """
    prepare_torchvision()
    dataset: Any = getattr(importlib.import_module("torchvision.datasets"), what)
    remove_leftovers(root, _ASIDE)
    try:
        # Aside first: half a data set in its place would be found, and never be fetched again.
        with tempfile.TemporaryDirectory(dir=root, prefix=_ASIDE) as aside:
            for arguments in parts or ({},):
                dataset(str(Path(aside, folder)), download=True, **arguments)
            _move_into_root(Path(aside), root)
    except Exception as error:  # those that torchvision calls for it, such as gdown, have errors of their own
        reason = " ".join(str(error).split())
        raise DataNotFound(
            f"{name}: cannot be downloaded ({reason})", f"put it into {root} by hand"
        ) from error


def _move_into_root(aside: Path, root: Path) -> None:
    """Move what was fetched into its place; what another process has put there meanwhile stays."""
    for made in aside.iterdir():
        if not (root / made.name).exists():
            made.replace(root / made.name)
