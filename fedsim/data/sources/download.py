"""Downloads through torchvision's own data set classes, which know the addresses and the checksums."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedsim.errors import DataNotFound
from fedsim.vision import torchvision_ready


def fetch(name: str, root: Path, what: str, **arguments: Any) -> None:
    """Downloads a data set into a root, in torchvision's layout.

    Args:
        name: of the data set, for the message.
        root: where to.
        what: torchvision's class.
        arguments: of that class.

    Raises:
        DataNotFound: it cannot be had now.
    """
    torchvision_ready()
    dataset: Any = getattr(importlib.import_module("torchvision.datasets"), what)
    try:
        dataset(str(root), download=True, **arguments)
    except (OSError, RuntimeError) as error:
        raise DataNotFound(
            f"{name}: cannot be downloaded ({error})", f"put it into {root} by hand"
        ) from error
