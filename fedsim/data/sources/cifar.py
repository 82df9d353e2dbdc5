"""CIFAR-10 and CIFAR-100: the Python batches as published, or image folders.

The batches are pickles, and a pickle can run code. The unpickler here accepts NumPy arrays and plain
containers, and refuses everything else.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedsim.data.augment import Steps
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.places import FETCH_HINT, DataRoots
from fedsim.data.sources.download import find_or_download
from fedsim.data.sources.folders import read_image_folders
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR10_MOMENTS = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
_CIFAR100_MOMENTS = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
_BATCHES10 = ("cifar-10-batches-py",)
_FOLDERS10 = ("cifar10", "cifar-10", "cifar10-jpeg")
_BATCHES100 = ("cifar-100-python",)


def cifar10(places: DataRoots, *, normalise: Normalisation = "channel", augment: Steps = ()) -> Dataset:
    """CIFAR-10, 50,000 to train and 10,000 to test; uint8, [3, 32, 32].

    Args:
        places: the data roots.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a file is truncated or mislabelled.
    """
    batches, folders = places.find_path(_BATCHES10), places.find_path(_FOLDERS10)
    if batches is None and folders is not None:
        train, test, classes = read_image_folders(places, folders, "train", "test", 32, 3)
        if classes != _CIFAR10_CLASSES:
            raise DataError(f"{folders}: has the classes {', '.join(classes)}, not those of CIFAR-10")
        source = folders
    else:
        get = f"unpack the Python version there, or put image folders into cifar10/, or {FETCH_HINT}"
        source = batches or find_or_download(places, "cifar10", (*_BATCHES10, *_FOLDERS10), get, "CIFAR10")
        train = _read_batches([source / f"data_batch_{n}" for n in range(1, 6)], "labels", 10)
        test = _read_batches([source / "test_batch"], "labels", 10)
    return image_dataset(
        "cifar10", train, test, _CIFAR10_CLASSES, source, normalise, augment, _CIFAR10_MOMENTS
    )


def cifar100(
    places: DataRoots,
    *,
    labels: Literal["fine", "coarse"] = "fine",
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """CIFAR-100, 50,000 to train and 10,000 to test; uint8, [3, 32, 32].

    Args:
        places: the data roots.
        labels: the 100 fine classes or the 20 coarse ones.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a file is truncated or mislabelled.
    """
    get = f"unpack the Python version there, or {FETCH_HINT}"
    source = find_or_download(places, "cifar100", _BATCHES100, get, "CIFAR100")
    number = 100 if labels == "fine" else 20
    names = _unpickle_arrays(source / "meta").get(f"{labels}_label_names".encode(), [])
    train, test = (_read_batches([source / part], f"{labels}_labels", number) for part in ("train", "test"))
    return image_dataset(
        "cifar100",
        train,
        test,
        [name.decode() for name in names],
        source,
        normalise,
        augment,
        _CIFAR100_MOMENTS,
    )


def _read_batches(files: Sequence[Path], labels: str, num_classes: int) -> Examples:
    parts = [_read_batch(file, labels, num_classes) for file in files]
    return Examples(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))


def _read_batch(file: Path, labels: str, num_classes: int) -> Examples:
    """Read one file: rows of 1,024 red, 1,024 green and 1,024 blue values."""
    content = _unpickle_arrays(file)
    data, numbers = content.get(b"data"), content.get(labels.encode())
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise DataError(f"{file}: has no images of 3 x 32 x 32 bytes", "fetch it again")
    if not isinstance(numbers, list) or len(numbers) != len(data):
        found = len(numbers) if isinstance(numbers, list) else "no"
        raise DataError(f"{file}: {found} {labels} for {len(data)} images", "fetch it again")
    y = np.array(numbers, np.int64)
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(wrong):
        raise DataError(
            f"{file}: label {y[wrong[0]]} at position {wrong[0]}, expected 0 to {num_classes - 1}"
        )
    return Examples(data.reshape(-1, 3, 32, 32), y)


def _unpickle_arrays(file: Path) -> dict[bytes, Any]:
    try:
        with file.open("rb") as opened:
            content = _ArraysOnly(opened, encoding="bytes").load()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: cannot be read ({error})", "fetch it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: holds a {type(content).__name__}, not a batch", "fetch it again")
    return content


class _ArraysOnly(pickle.Unpickler):
    """Unpickle NumPy arrays in plain containers, as written by NumPy 1 and 2."""

    _ALLOWED: ClassVar[dict[tuple[str, str], tuple[str, str]]] = {
        ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"): ("numpy", "ndarray"),
        ("numpy", "dtype"): ("numpy", "dtype"),
        ("_codecs", "encode"): ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """The object for a pickle's reference.

        Raises:
            UnpicklingError: if it is not part of a NumPy array.
        """
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is in no CIFAR file")
        place, what = self._ALLOWED[module, name]
        found: Callable[..., Any] = getattr(importlib.import_module(place), what)
        return found
