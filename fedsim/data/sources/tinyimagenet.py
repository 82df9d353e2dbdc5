"""Tiny-ImageNet in its original layout: 200 classes of 64x64, with a list of the validation images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.decode import decode_images, image_files
from fedsim.data.places import DataRoots
from fedsim.data.sources.folders import Size, interleave
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_FOLDERS = ("tiny-imagenet-200",)
_MOMENTS = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)


def tiny_imagenet(
    places: DataRoots, *, size: Size = 64, normalise: Normalisation = "channel", augment: Steps = ()
) -> Dataset:
    """Tiny-ImageNet: `train` to train on, `val` to test on (`test` has no public labels); [3, size, size].

    The whole set has 100,000 and 10,000 images; a subset in the same layout also works.

    Args:
        places: the data roots.
        size: height and width of the scaled images; the original has 64.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if an image is damaged, or a list and the images do not belong together.
    """
    folder = places.require_path("tiny_imagenet", _FOLDERS, "unpack tiny-imagenet-200.zip there")
    names = _lines(folder / "wnids.txt")
    number = {name: label for label, name in enumerate(names)}
    train, val = _training(folder, names), _validation(folder, number)
    files = [file for part in (train, val) for file, _ in part]
    recipe = f"images 1 size={size} channels=3"
    images = load_or_make(places, folder, files, recipe, lambda: {"x": decode_images(files, size)})["x"]
    labels = np.array([label for part in (train, val) for _, label in part], np.int64)
    cut = len(train)
    return image_dataset(
        "tiny_imagenet",
        Examples(images[:cut], labels[:cut]),
        Examples(images[cut:], labels[cut:]),
        _words(folder, names),
        folder,
        normalise,
        augment,
        _MOMENTS,
    )


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error})", "unpack the archive again") from error


def _training(folder: Path, names: list[str]) -> list[tuple[Path, int]]:
    by_class = []
    for label, name in enumerate(names):
        files = image_files(folder / "train" / name / "images")
        if not files:
            raise DataError(
                f"{folder / 'train' / name / 'images'}: has no images", "unpack the archive again"
            )
        by_class.append([(file, label) for file in files])
    return interleave(by_class)


def _validation(folder: Path, number: Mapping[str, int]) -> list[tuple[Path, int]]:
    listing = folder / "val" / "val_annotations.txt"
    listed = []
    for line_number, line in enumerate(_lines(listing), 1):
        name, _, rest = line.partition("\t")
        label = rest.split("\t")[0]
        if label not in number:
            raise DataError(
                f"{listing}: line {line_number} names the class {label!r}, which is not in wnids.txt"
            )
        file = folder / "val" / "images" / name
        if not file.is_file():
            raise DataError(f"{listing}: line {line_number} names {name!r}, which is not in val/images")
        listed.append((file, number[label]))
    return listed


def _words(folder: Path, names: list[str]) -> list[str]:
    """The first English word of each class; its WordNet number if there is no word."""
    file = folder / "words.txt"
    lines = _lines(file) if file.is_file() else []
    words = {name: text.split(",")[0].strip() for name, _, text in (line.partition("\t") for line in lines)}
    return [words.get(name) or name for name in names]
