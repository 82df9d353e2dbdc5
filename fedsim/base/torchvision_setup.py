"""torchvision beside a CPU-only torch: call `torchvision_ready()` before anything imports torchvision.

torchvision's wheel on the package index is compiled against CUDA. Beside a CPU-only torch its compiled
operators do not load, and the import then stops at the first one whose schema it looks up ("operator
torchvision::nms does not exist"). What fedsim needs (data sets, models) is pure Python and works once the
schemas of those two operators are declared. They are declared only where the compiled operators are missing;
calling one then fails as a call without a kernel does.
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
    """Makes `import torchvision` possible; a second call costs nothing.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    if "torchvision" not in sys.modules:
        _declare_missing_operators()


@cache
def _declare_missing_operators() -> Any:
    """Declares them once; the cached result keeps them declared, as torch withdraws what nobody holds."""
    if _can_load_operators():
        return None
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)
    return library


def _can_load_operators() -> bool:
    """Whether torchvision's compiled operators load into this torch, tried without importing torchvision."""
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
