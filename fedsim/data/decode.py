"""Image files to one uint8 array."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedsim.data.dataset import Array
from fedsim.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Channels: TypeAlias = Literal[1, 3]

_DEEP = frozenset({".png", ".ppm", ".pgm", ".tif", ".tiff"})
_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".gif"})
_SLICE = 256
_LARGE = 16_384
_BILINEAR = 2  # Pillow's Resampling.BILINEAR, without importing Pillow


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and below, in the order of their names, without hidden ones."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [
            Path(parent, n)
            for n in names
            if os.path.splitext(n)[1].lower() in _ENDINGS and not n.startswith(".")
        ]
    return sorted(found)


def decode_images(files: Sequence[Path], size: int | None = None, channels: Channels = 3) -> Array:
    """Decodes images.

    Args:
        files: one image each.
        size: height and width to scale them to; when not given they have to be equally large already.
        channels: 3 for colour, 1 for grey.

    Returns:
        uint8 [n, channels, H, W].

    Raises:
        DataError: a file is no image, truncated, or of another size; names it.
    """
    if not files:
        return np.empty((0, channels, size or 1, size or 1), np.uint8)
    first = _decode_one(files[0], size, channels)
    images = np.empty((len(files), *first.shape), np.uint8)
    # Small images spend their time in Python, where threads only get in each other's way.
    large = files[0].stat().st_size > _LARGE
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1) if large else 1) as threads:
        tasks = [
            threads.submit(
                _fill_images, images, files, range(start, min(start + _SLICE, len(files))), size, channels
            )
            for start in range(0, len(files), _SLICE)
        ]
        try:
            for task in tasks:
                task.result()
        finally:
            threads.shutdown(cancel_futures=True)
    return images


def _fill_images(
    images: Array, files: Sequence[Path], which: Iterable[int], size: int | None, channels: Channels
) -> None:
    for position in which:
        image = _decode_one(files[position], size, channels)
        if image.shape != images.shape[1:]:
            wide, high = image.shape[2], image.shape[1]
            raise DataError(
                f"{files[position]}: is {wide}x{high}, the others are {images.shape[3]}x{images.shape[2]}",
                "give a size to scale all of them to",
            )
        images[position] = image


def _decode_one(file: Path, size: int | None, channels: Channels) -> Array:
    from PIL import Image as pillow  # not needed by data that is no images

    try:
        with pillow.open(file) as opened:
            return to_pixels(opened, size, channels, str(file))
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(f"{file}: is not a whole image ({error})", "fetch it again, or remove it") from error


def may_exceed_8_bits(files: Iterable[Path]) -> bool:
    """Whether one of these image files is of a kind that may have more than 8 bits a value."""
    return any(file.suffix.lower() in _DEEP for file in files)


def to_pixels(image: Image, size: int | None, channels: Channels, name: str) -> Array:
    """A Pillow image as uint8 [channels, H, W], scaled to size x size if a size is given.

    Of 16 bits grey, the upper eight are kept, as Pillow itself does with 16 bits of colour.

    Args:
        image: of any kind.
        size: height and width.
        channels: 3 for colour, 1 for grey.
        name: of the image, for the message.

    Raises:
        DataError: its values fill neither 8 nor 16 bits.
    """
    if image.mode[0] in "IF":
        image = _eight_bits(image, name)
    image = image.convert("RGB" if channels == 3 else "L")
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), _BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bits(image: Image, name: str) -> Image:
    """Grey values of more than 8 bits as 8 bits, which Pillow would only cut off at 255."""
    from PIL import Image as pillow

    values, way_out = np.asarray(image), "save the images with 8 bits"
    if image.mode.startswith("I;16"):
        if 0 < values.max() < 256:
            raise DataError(f"{name}: has 16 bits, and its values use only the lower eight", way_out)
        values = values >> 8
    elif not np.isin(values, np.arange(256)).all():
        raise DataError(f"{name}: has values other than 0 to 255 (Pillow's mode {image.mode})", way_out)
    return pillow.fromarray(values.astype(np.uint8))
