"""The MNIST family: IDX files in torchvision's folders, or as installed by Debian's package."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.data.augment import Steps
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.places import FETCH_HINT, DataRoots
from fedsim.data.sources.download import find_or_download
from fedsim.data.sources.idx import read_idx
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_CLOTHES = (
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
_MNIST_FOLDERS = ("MNIST/raw", "mnist")
_FASHION_FOLDERS = ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist")
_EMNIST_FOLDERS = ("EMNIST/raw", "emnist", "gzip")

_LETTERS_AND_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def mnist(places: DataRoots, *, normalise: Normalisation = "channel", augment: Steps = ()) -> Dataset:
    """MNIST, 60,000 to train and 10,000 to test; uint8, [1, 28, 28].

    Args:
        places: the data roots.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if the files are in no data root.
        DataError: if a file is truncated or mislabelled.
    """
    get = f"copy the four IDX files there, or {FETCH_HINT}"
    folder = find_or_download(places, "mnist", _MNIST_FOLDERS, get, "MNIST")
    train, test = (_read_pair(folder, prefix, 10) for prefix in ("train", "t10k"))
    moments = (0.1307,), (0.3081,)
    return image_dataset("mnist", train, test, string.digits, folder, normalise, augment, moments)


def fashion_mnist(places: DataRoots, *, normalise: Normalisation = "channel", augment: Steps = ()) -> Dataset:
    """Fashion-MNIST, 60,000 to train and 10,000 to test; uint8, [1, 28, 28].

    Args:
        places: the data roots.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if the files are in no data root and not installed.
        DataError: if a file is truncated or mislabelled.
    """
    get = f"install Debian's dataset-fashion-mnist, copy the four IDX files there, or {FETCH_HINT}"
    folder = places.find_path(_FASHION_FOLDERS) or places.find_installed("fashion-mnist")
    folder = folder or find_or_download(places, "fashion_mnist", _FASHION_FOLDERS, get, "FashionMNIST")
    train, test = (_read_pair(folder, prefix, 10) for prefix in ("train", "t10k"))
    moments = (0.2860,), (0.3530,)
    return image_dataset("fashion_mnist", train, test, _CLOTHES, folder, normalise, augment, moments)


def emnist(
    places: DataRoots,
    *,
    split: Literal["letters", "byclass"] = "letters",
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """EMNIST, upright; uint8, [1, 28, 28].

    In the files, rows and columns of every image are exchanged; this is undone here. The split `letters`
    numbers its 26 classes from 1; here they are 0 to 25.

    Args:
        places: the data roots.
        split: `letters` (26 classes, case ignored) or `byclass` (62: digits, capitals, small letters).
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if the files are in no data root.
        DataError: if a file is truncated or mislabelled.
    """
    get = f"unpack EMNIST's gzip.zip there, or {FETCH_HINT}"
    folder = find_or_download(places, "emnist", _EMNIST_FOLDERS, get, "EMNIST", {"split": split})
    classes, first = (string.ascii_lowercase, 1) if split == "letters" else (_LETTERS_AND_DIGITS, 0)
    parts = [_read_pair(folder, f"emnist-{split}-{part}", len(classes), first) for part in ("train", "test")]
    train, test = (Examples(np.ascontiguousarray(p.x.swapaxes(2, 3)), p.y) for p in parts)
    return image_dataset("emnist", train, test, classes, folder, normalise, augment)


def _read_pair(folder: Path, prefix: str, num_classes: int, first: int = 0) -> Examples:
    """Read and check the images and labels of one part; labels start from `first` in the file."""
    images_file = _find_one_of(folder, (f"{prefix}-images-idx3-ubyte", f"{prefix}-images.idx3-ubyte"))
    labels_file = _find_one_of(folder, (f"{prefix}-labels-idx1-ubyte", f"{prefix}-labels.idx1-ubyte"))
    x, y = read_idx(images_file, 3), read_idx(labels_file, 1).astype(np.int64) - first
    if len(x) != len(y):
        raise DataError(f"{labels_file}: {len(y)} labels for the {len(x)} images of {images_file.name}")
    if x.shape[1:] != (28, 28):
        raise DataError(f"{images_file}: images of {x.shape[1]}x{x.shape[2]}, expected 28x28")
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(wrong):
        label, last = y[wrong[0]] + first, num_classes - 1 + first
        raise DataError(f"{labels_file}: label {label} at position {wrong[0]}, expected {first} to {last}")
    return Examples(x[:, None], y)


def _find_one_of(folder: Path, names: Sequence[str]) -> Path:
    candidates = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        way_out = f"put it there, or remove {folder} and download the data set again"
        raise DataError(f"{folder}: has no {names[0]}, gzipped or not", way_out)
    return found
