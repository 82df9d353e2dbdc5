"""torchvision with a CPU-only torch: call `prepare_torchvision` before anything imports torchvision.

The torchvision wheel on the package index is compiled for CUDA. With a CPU-only torch its compiled operators
do not load, and the import fails with "operator torchvision::nms does not exist". fedsim needs only the data
sets and models of torchvision. They are pure Python and work once the schemas of two operators are declared.
This module declares them only if the compiled operators are missing; a call of one then fails for want of a
kernel.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def prepare_torchvision() -> None:
    """Make `import torchvision` work; a second call costs nothing.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    if "torchvision" not in sys.modules:
        _declare_missing_operators()


@cache
def _declare_missing_operators() -> Any:
    """Declare the missing operators once; torch keeps them only while the (cached) library object exists."""
    if _can_load_operators():
        return None
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)
    return library


def _can_load_operators() -> bool:
    """Try to load the compiled operators of torchvision into torch, without importing torchvision."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; install it with: pip install torchvision")
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    extension = importlib.machinery.FileFinder(str(Path(spec.origin).parent), loader).find_spec("_C")
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(extension.origin)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True
