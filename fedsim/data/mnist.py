"""The MNIST family: IDX files in torchvision's folder layout, or as Debian's package installs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsim.data.dataset import Dataset, Examples, Normalise
from fedsim.data.idx import read_idx
from fedsim.data.places import Places
from fedsim.errors import DataError

_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_FOLDERS = ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist")
_FASHION_GET = (
    "install Debian's dataset-fashion-mnist, copy the four IDX files into a data root, or allow downloads"
)


def fashion_mnist(places: Places) -> Dataset:
    """Fashion-MNIST, 60,000 to train and 10,000 to test; uint8, [1, 28, 28].

    Raises:
        DataNotFound: the files are in no data root and not installed.
        DataError: a file is truncated or mislabelled.
    """
    folder = places.find(_FASHION_FOLDERS) or _installed(places.system / "fashion-mnist")
    if folder is None and places.download:
        folder = _download_fashion(places.target("fashion_mnist"))
    if folder is None:
        raise places.missing("fashion_mnist", _FASHION_FOLDERS, _FASHION_GET)
    train, test = (_pair(folder, prefix, num_classes=10) for prefix in ("train", "t10k"))
    return Dataset(
        name="fashion_mnist",
        train=train,
        test=test,
        num_classes=10,
        input_shape=(1, 28, 28),
        classes=_FASHION_CLASSES,
        normalise=Normalise((0.2860,), (0.3530,), 255.0),
        source=str(folder),
    )


def _installed(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None


def _download_fashion(root: Path) -> Path:
    from fedsim.vision import torchvision_ready

    torchvision_ready()
    from torchvision.datasets import FashionMNIST

    FashionMNIST(str(root), download=True)
    return root / _FASHION_FOLDERS[0]


def _pair(folder: Path, prefix: str, num_classes: int) -> Examples:
    """The images and labels of one part, held against each other."""
    images_file = _one_of(folder, (f"{prefix}-images-idx3-ubyte", f"{prefix}-images.idx3-ubyte"))
    labels_file = _one_of(folder, (f"{prefix}-labels-idx1-ubyte", f"{prefix}-labels.idx1-ubyte"))
    x, y = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(x) != len(y):
        raise DataError(f"{labels_file}: {len(y)} labels for the {len(x)} images of {images_file.name}")
    if x.shape[1:] != (28, 28):
        raise DataError(f"{images_file}: images of {x.shape[1]}x{x.shape[2]}, expected 28x28")
    if len(y) and y.max() >= num_classes:
        position = int(np.argmax(y >= num_classes))
        raise DataError(
            f"{labels_file}: label {y[position]} at position {position}, expected 0 to {num_classes - 1}"
        )
    return Examples(x[:, None], y.astype(np.int64))


def _one_of(folder: Path, names: Sequence[str]) -> Path:
    candidates = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise DataError(f"{folder}: has no {names[0]}, gzipped or not", "fetch the data set again")
    return found
