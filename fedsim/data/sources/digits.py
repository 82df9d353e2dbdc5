"""Digits: 1,797 images of 8x8 from scikit-learn, the one real data set that needs no download."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedsim.base import rng
from fedsim.data.dataset import Array, Dataset, Examples, Normalise
from fedsim.data.places import DataRoots

_TEST_SHARE = 0.2


def digits(_places: DataRoots) -> Dataset:
    """The digits, 1,438 to train and 359 to test in a fixed split; uint8 0..16, [1, 8, 8]."""
    table = _read_table(_find_table())
    x = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8)
    y = table[:, -1].astype(np.int64)
    # The split is part of the data set, and does not depend on an experiment's seed.
    order = rng.stream(0, "digits-split").permutation(len(y))
    cut = round(len(y) * (1 - _TEST_SHARE))
    train, test = (Examples(x[part], y[part]) for part in (order[:cut], order[cut:]))
    pixels = train.x / 16.0
    return Dataset(
        name="digits",
        train=train,
        test=test,
        num_classes=10,
        input_shape=(1, 8, 8),
        classes=tuple("0123456789"),
        normalise=Normalise((float(pixels.mean()),), (float(pixels.std()),), 16.0),
        source="scikit-learn",
    )


@lru_cache(maxsize=1)
def _read_table(file: Path) -> Array:
    """Read the table once per process: float64 [1797, 65], read-only. A run needs the data set twice."""
    table = np.loadtxt(file, delimiter=",")
    table.flags.writeable = False
    return table


def _find_table() -> Path:
    """Return the file of scikit-learn that `load_digits` reads; an import of the package takes a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the data set digits is a file of scikit-learn, which is not installed")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
