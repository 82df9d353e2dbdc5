"""SVHN: house numbers, as MATLAB files of cropped digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.augment import Steps
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.places import FETCH_HINT, DataRoots
from fedsim.data.sources.download import find_or_download
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_FOLDERS = ("svhn", "SVHN")
_MOMENTS = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def svhn(places: DataRoots, *, normalise: Normalisation = "channel", augment: Steps = ()) -> Dataset:
    """SVHN, 73,257 to train and 26,032 to test; uint8, [3, 32, 32]. The file's label 10 is the digit 0.

    Args:
        places: the data roots.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a file is truncated or mislabelled.
    """
    get = f"put train_32x32.mat and test_32x32.mat there, or {FETCH_HINT}"
    parts = {"split": "train"}, {"split": "test"}
    folder = find_or_download(places, "svhn", _FOLDERS, get, "SVHN", *parts, folder="svhn")
    train, test = (_read_part(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return image_dataset("svhn", train, test, "0123456789", folder, normalise, augment, _MOMENTS)


def _read_part(file: Path) -> Examples:
    """Read one part: X is [32, 32, 3, n], y is [n, 1]."""
    from scipy.io import loadmat  # slow to import, and needed by this loader alone

    try:
        content: dict[str, Any] = loadmat(file)
        x, y = content["X"], content["y"].ravel().astype(np.int64)
    except Exception as error:  # SciPy raises its own, zlib's and Python's errors for damaged files
        raise DataError(
            f"{file}: is not one of SVHN's cropped-digit files ({error})", "fetch it again"
        ) from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise DataError(
            f"{file}: X is {x.dtype} of {x.shape}, expected uint8 of (32, 32, 3, n)", "fetch it again"
        )
    if len(y) != x.shape[3]:
        raise DataError(f"{file}: {len(y)} labels for {x.shape[3]} images", "fetch it again")
    wrong = np.flatnonzero((y < 1) | (y > 10))
    if len(wrong):
        raise DataError(f"{file}: label {y[wrong[0]]} at position {wrong[0]}, expected 1 to 10")
    return Examples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10)
