"""Image files to one uint8 array."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedsim.base.memory_usage import require_memory
from fedsim.data.dataset import Array
from fedsim.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Channels: TypeAlias = Literal[1, 3]

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000")
"""The formats that Pillow may open. For EPS it starts Ghostscript, which runs the file as a program."""

_ENDINGS = frozenset(
    {".jpg", ".jpeg", ".jfif", ".jp2", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".gif"}
)
_SLICE = 256
_LARGE = 16_384
_BILINEAR = 2  # Pillow's Resampling.BILINEAR, without importing Pillow


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and its subfolders, sorted by name, without hidden ones."""
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
    """Decode images.

    Args:
        files: one image each.
        size: height and width of the scaled images; without it all images must have the same size.
        channels: 3 for colour, 1 for grey.

    Returns:
        uint8 [n, channels, H, W].

    Raises:
        DataError: if a file is not an image, truncated, or of another size; the message names the file. Also
            if the images are larger than the memory.
    """
    if not files:
        return np.empty((0, channels, size or 1, size or 1), np.uint8)
    first = _decode_image(files[0], size, channels)
    require_memory(f"{len(files):,} images like {files[0]}", len(files) * first.nbytes)
    images = np.empty((len(files), *first.shape), np.uint8)
    # Small images spend their time in Python code, which threads do not speed up.
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
        image = _decode_image(files[position], size, channels)
        if image.shape != images.shape[1:]:
            wide, high = image.shape[2], image.shape[1]
            raise DataError(
                f"{files[position]}: is {wide}x{high}, the others are {images.shape[3]}x{images.shape[2]}",
                "set `size` to scale all images",
            )
        images[position] = image


def _decode_image(file: Path, size: int | None, channels: Channels) -> Array:
    with open_image(file, str(file)) as opened:
        return to_pixels(opened, size, channels, str(file))


@contextmanager
def open_image(source: Path | BytesIO, name: str) -> Iterator[Image]:
    """Open an image with Pillow, whatever its ending says, and turn it upright as its camera noted.

    Args:
        source: the file, or its bytes.
        name: of the image, for the message.

    Raises:
        DataError: if it is no image, truncated, or of a format that Pillow does not decode itself; also for
            such an error in the block.
    """
    from PIL import Image as pillow  # only data of images needs it
    from PIL import ImageOps

    try:
        with pillow.open(source, formats=_FORMATS) as opened:
            yield ImageOps.exif_transpose(opened)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(
            f"{name}: is not a complete image ({error})", "fetch it again, or remove it"
        ) from error


def find_channels(image: Image) -> Channels:
    """The channels of a Pillow image: 1 if it is grey, 3 if it has colours."""
    return 1 if image.mode in ("1", "L", "LA", "La") or image.mode[0] in "IF" else 3


def to_pixels(image: Image, size: int | None, channels: Channels, name: str) -> Array:
    """A Pillow image as uint8 [channels, H, W], scaled to size x size if a size is given.

    Of 16-bit grey values the upper eight bits are kept, as Pillow does with 16-bit colour. Transparent pixels
    become white: without their transparency, black icons on a transparent ground would be black squares.

    Args:
        image: of any mode.
        size: height and width.
        channels: 3 for colour, 1 for grey.
        name: of the image, for the message.

    Raises:
        DataError: if its values fill neither 8 nor 16 bits.
    """
    if image.mode[0] in "IF":
        image = _reduce_to_8_bits(image, name)
    if image.has_transparency_data:
        image = _fill_transparent(image)
    image = image.convert("RGB" if channels == 3 else "L")
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), _BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _fill_transparent(image: Image) -> Image:
    from PIL import Image as pillow

    return pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image.convert("RGBA"))


def _reduce_to_8_bits(image: Image, name: str) -> Image:
    """Reduce grey values of more than 8 bits to 8 bits; Pillow would clip them at 255."""
    from PIL import Image as pillow

    values, way_out = np.asarray(image), "save the images with 8 bits"
    if image.mode.startswith("I;16"):
        if 0 < values.max() < 256:
            raise DataError(f"{name}: has 16 bits, and its values use only the lower eight", way_out)
        values = values >> 8
    elif not np.isin(values, np.arange(256)).all():
        raise DataError(f"{name}: has values other than 0 to 255 (Pillow's mode {image.mode})", way_out)
    return pillow.fromarray(values.astype(np.uint8))
