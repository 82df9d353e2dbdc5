"""Image folders: a folder for each part, in it a folder for each class, in it the image files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import Range, Share, make_spec_error
from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Dataset, Examples, Indices
from fedsim.data.decode import Channels, decode_images, image_files
from fedsim.data.places import DataPath, DataRoots
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

Size = Annotated[int, Range(4, 1024)]
T = TypeVar("T")

_COMPLETE = "put images of this class there, or remove its folder from every part"
_CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CINIC_MOMENTS = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
_CINIC_FOLDERS = ("CINIC-10", "cinic-10", "cinic10")


def image_folder(
    places: DataRoots,
    *,
    path: DataPath,
    train: DataPath = "train",
    test: DataPath | None = "test",
    test_share: Share = 0.2,
    size: Size | None = None,
    channels: Channels = 3,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """The user's own images: PATH/train/CLASS/*.jpg and PATH/test/CLASS/*.jpg.

    The classes alternate in the order of the examples: the first n are a balanced sample.

    Args:
        places: the data roots.
        path: the folder, relative to a data root.
        train: the training part; "" if the class folders are in PATH itself.
        test: the test part; null to cut it off the training part.
        test_share: share cut off in that case, always the same images.
        size: height and width of the scaled images; not needed if all images have the same size.
        channels: 3 for colour, 1 for grey.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if there is no such folder in a data root.
        DataError: if an image is damaged or of another size, or a class folder is empty or not in both parts.
    """
    folder = places.resolve_path("image_folder", path, "put the folder there")
    first, second, classes = read_image_folders(places, folder, train, test, size, channels, own=True)
    if test is None:
        first, second = cut_test_examples(first, test_share)
    return image_dataset("image_folder", first, second, classes, folder, normalise, augment)


def cinic10(
    places: DataRoots, *, validation: bool = False, normalise: Normalisation = "channel", augment: Steps = ()
) -> Dataset:
    """CINIC-10, 90,000 to train and 90,000 to test; uint8, [3, 32, 32].

    Args:
        places: the data roots.
        validation: whether to train on the 90,000 images of its validation part as well.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if an image is damaged, or a class folder is missing.
    """
    folder = places.require_path(
        "cinic10", _CINIC_FOLDERS, "unpack CINIC-10.tar.gz there, so that CINIC-10/train exists"
    )
    train, test, classes = read_image_folders(places, folder, "train", "test", 32, 3)
    _check_cinic(folder, classes)
    if validation:
        more, _, found = read_image_folders(places, folder, "valid", None, 32, 3)
        _check_cinic(folder / "valid", found)
        train = Examples(np.concatenate([train.x, more.x]), np.concatenate([train.y, more.y]))
    return image_dataset("cinic10", train, test, classes, folder, normalise, augment, _CINIC_MOMENTS)


def _check_cinic(folder: Path, classes: Sequence[str]) -> None:
    if classes != _CINIC_CLASSES:
        raise DataError(
            f"{folder}: has the classes {', '.join(classes)}, not those of CINIC-10", "unpack it again"
        )


def read_image_folders(
    places: DataRoots,
    folder: Path,
    train: str,
    test: str | None,
    size: int | None,
    channels: Channels,
    *,
    own: bool = False,
) -> tuple[Examples, Examples, tuple[str, ...]]:
    """Read the parts of an image folder, through the cache.

    Args:
        places: the data roots for the cache.
        folder: the data set's folder.
        train: the training part, below `folder`.
        test: the test part; None for none.
        size: height and width of the scaled images.
        channels: 3 or 1.
        own: whether the images are the user's, in any format.

    Returns:
        The training and the test examples (empty without a test part), and the class names.

    Raises:
        DataError: as `image_folder`.
    """
    classes = class_folders(folder / train)
    parts = [_list_images(folder / part, classes) for part in (train, test) if part is not None]
    files = [file for part in parts for file, _ in part]
    # Before version 3, transparent pixels had any colour, and photographs lay on their sides.
    version = 3 if own else 1
    recipe = f"images {version} size={size} channels={channels} parts={[len(part) for part in parts]}"
    images = load_or_make(places, folder, files, recipe, lambda: {"x": decode_images(files, size, channels)})[
        "x"
    ]
    labels = np.array([label for part in parts for _, label in part], np.int64)
    cut = len(parts[0])
    return Examples(images[:cut], labels[:cut]), Examples(images[cut:], labels[cut:]), tuple(classes)


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders, sorted.

    Raises:
        DataError: if there are none.
    """
    found = (
        sorted(f.name for f in folder.iterdir() if f.is_dir() and f.name[0] != ".") if folder.is_dir() else []
    )
    if not found and not folder.exists() and folder.parent.is_dir():
        raise DataError(
            f"{folder}: is missing",
            f"set train and test to folders of {folder.parent}, or test: null; if {folder.parent} itself has"
            " the class folders, set train: '' and test: null",
        )
    if not found:
        raise DataError(
            f"{folder}: has no class folders", "put the images of each class into a folder of its own"
        )
    return found


def _list_images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The images of one part with their labels; the classes alternate."""
    found = set(class_folders(folder))
    if strange := found - set(classes):
        raise DataError(
            f"{folder / min(strange)}: is not a class of the training part", "remove or rename it"
        )
    if missing := set(classes) - found:
        raise DataError(
            f"{folder / min(missing)}: is missing, but it is a class of the training part", _COMPLETE
        )
    by_class = [image_files(folder / name) for name in classes]
    if empty := [name for name, files in zip(classes, by_class, strict=True) if not files]:
        raise DataError(f"{folder / empty[0]}: has no images", _COMPLETE)
    return interleave([[(file, label) for file in files] for label, files in enumerate(by_class)])


def interleave(groups: Iterable[Iterable[T]]) -> list[T]:
    """The first of every group, then the second of every group, and so on."""
    return [item for turn in itertools.zip_longest(*groups) for item in turn if item is not None]


def cut_test_examples(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """Cut a fixed random share of the examples off as the test set; both parts keep their order."""
    train, test = cut_test_positions(len(examples), share)
    return examples.select_rows(train), examples.select_rows(test)


def cut_test_positions(number: int, share: float) -> tuple[Indices, Indices]:
    """The positions of `number` examples, in order: for training, and for testing.

    Raises:
        SpecError: if no example is left for training.
    """
    order = rng.stream(0, "test-share").permutation(number)
    cut = round(number * share)
    if cut == number:
        message = f"leaves none of {number:,} examples for training"
        raise make_spec_error("test_share", share, message, "lower it, or have more examples")
    return np.sort(order[cut:]), np.sort(order[:cut])
