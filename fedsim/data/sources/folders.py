"""Image folders: a folder per part, a folder per class in it, image files in that."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import Range, Share
from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Dataset, Examples, Indices
from fedsim.data.decode import Channels, decode_images, image_files, may_exceed_8_bits
from fedsim.data.places import DataRoots
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
    path: str,
    train: str = "train",
    test: str | None = "test",
    test_share: Share = 0.2,
    size: Size | None = None,
    channels: Channels = 3,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """Images of the user's own: PATH/train/CLASS/*.jpg and PATH/test/CLASS/*.jpg.

    Examples are ordered so that the classes take turns: the first n are a fair sample.

    Args:
        places: where to look.
        path: the folder, relative to a data root.
        train: the part to train on; "" when the class folders are in PATH itself.
        test: the part to test on; null to cut it off the training part.
        test_share: the share cut off in that case, always the same images.
        size: height and width to scale all images to; not needed when they are equally large.
        channels: 3 for colour, 1 for grey.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip` and `rotate`.

    Raises:
        DataNotFound: there is no such folder in a data root.
        DataError: an image is damaged or of another size, or a class folder is not in both parts, or empty.
    """
    folder = places.resolve_path("image_folder", path, "put the folder there")
    first, second, classes = read_image_folders(places, folder, train, test, size, channels, own=True)
    if test is None:
        first, second = cut_test_examples(first, test_share)
    return image_dataset(
        "image_folder", first, second, classes, normalise=normalise, augment=augment, source=folder
    )


def cinic10(
    places: DataRoots, *, validation: bool = False, normalise: Normalisation = "channel", augment: Steps = ()
) -> Dataset:
    """CINIC-10, 90,000 to train and 90,000 to test; uint8, [3, 32, 32].

    Args:
        places: where to look.
        validation: whether the 90,000 of its validation part are trained on as well.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip` and `rotate`.

    Raises:
        DataNotFound: it is in no data root.
        DataError: an image is damaged, or a class folder is missing.
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
    return image_dataset(
        "cinic10",
        train,
        test,
        classes,
        normalise=normalise,
        augment=augment,
        source=folder,
        moments=_CINIC_MOMENTS,
    )


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
    """Reads the parts of an image folder, through the cache.

    Args:
        places: where the cache may lie.
        folder: the data set's.
        train: the training part, below `folder`.
        test: the test part; None for none.
        size: to scale to.
        channels: 3 or 1.
        own: whether they are the user's, who may have saved them in any way.

    Returns:
        The training and the test examples (empty without a test part), and the class names.

    Raises:
        DataError: as `image_folder` says.
    """
    classes = class_folders(folder / train)
    parts = [_list_images(folder / part, classes) for part in (train, test) if part is not None]
    files = [file for part in parts for file, _ in part]
    version = 2 if own and may_exceed_8_bits(files) else 1  # 1 made images of 16 bits white
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
        DataError: there is none.
    """
    found = (
        sorted(f.name for f in folder.iterdir() if f.is_dir() and f.name[0] != ".") if folder.is_dir() else []
    )
    if not found:
        raise DataError(f"{folder}: has no folder for each class", "put the images of each class into one")
    return found


def _list_images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The images of one part with their labels, classes taking turns."""
    found = set(class_folders(folder))
    if strange := found - set(classes):
        raise DataError(f"{folder / min(strange)}: is no class of the training part", "remove or rename it")
    if missing := set(classes) - found:
        raise DataError(f"{folder / min(missing)}: is missing, a class of the training part", _COMPLETE)
    by_class = [image_files(folder / name) for name in classes]
    if empty := [name for name, files in zip(classes, by_class, strict=True) if not files]:
        raise DataError(f"{folder / empty[0]}: has no images", _COMPLETE)
    return interleave([[(file, label) for file in files] for label, files in enumerate(by_class)])


def interleave(groups: Iterable[Iterable[T]]) -> list[T]:
    """The first of every group, then the second of every group, and so on."""
    return [item for turn in itertools.zip_longest(*groups) for item in turn if item is not None]


def cut_test_examples(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """A fixed random share of the examples as the test set; both keep the given order."""
    train, test = cut_test_positions(len(examples), share)
    return examples.select_rows(train), examples.select_rows(test)


def cut_test_positions(number: int, share: float) -> tuple[Indices, Indices]:
    """The same of so many examples, as positions in order: to train on, and to test on."""
    order = rng.stream(0, "test-share").permutation(number)
    cut = round(number * share)
    return np.sort(order[cut:]), np.sort(order[:cut])
