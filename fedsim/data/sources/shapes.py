"""Shapes: made images of disks, squares and triangles, with a class for every pixel."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedsim.base import rng
from fedsim.base.memory_usage import require_memory
from fedsim.base.parameters import Range, Seed, make_spec_error
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.places import DataRoots
from fedsim.data.sources.images import choose_normalisation

CLASSES = ("background", "disk", "square", "triangle")
MOST_PIXELS = 2**28
"""Largest number of pixels of all examples together: 2 GiB of labels."""


def shapes(
    _places: DataRoots,
    *,
    examples: Annotated[int, Range(1, 1_000_000)] = 1_000,
    test_examples: Annotated[int, Range(1, 100_000)] = 200,
    size: Annotated[int, Range(16, 256)] = 32,
    noise: Annotated[float, Range(minimum=0, maximum=1)] = 0.3,
    seed: Seed = 0,
) -> Dataset:
    """Grey images with one disk, one square and one triangle in noise; a later shape covers an earlier one.

    Args:
        examples: number of training examples.
        test_examples: number of test examples.
        size: height and width.
        noise: the noise's share of each pixel; the rest is the brightness of background or shape.
        seed: of the data, independent of the experiment's seed.

    Raises:
        SpecError: if there are too many pixels.
        DataError: if they are larger than the memory.
    """
    check_shapes(examples=examples, test_examples=test_examples, size=size)
    # Eight bytes of a label and one of a pixel.
    require_memory("the generated data", 9 * (examples + test_examples) * size * size)
    train, test = (_draw(n, size, noise, seed, part) for part, n in enumerate((examples, test_examples)))
    return Dataset(
        name="shapes",
        train=train,
        test=test,
        num_classes=len(CLASSES),
        input_shape=(1, size, size),
        classes=CLASSES,
        normalise=choose_normalisation("half", train.x),
        task="segmentation",
        source=f"drawn with seed {seed}",
    )


def check_shapes(*, examples: int, test_examples: int, size: int, **_: object) -> None:
    """Raise an error for images that are too large for memory, before they are drawn.

    Raises:
        SpecError: if they are too large.
    """
    pixels = (examples + test_examples) * size * size
    if pixels > MOST_PIXELS:
        hint = f"at most {MOST_PIXELS:,}: use fewer or smaller images"
        raise make_spec_error("size", size, f"makes {pixels:,} pixels of all images", hint)


def _draw(count: int, size: int, noise: float, seed: int, part: int) -> Examples:
    generator = rng.stream(seed, "shapes", part)
    y = np.zeros((count, size, size), np.int64)
    x = np.empty((count, 1, size, size), np.uint8)
    for number in range(count):
        levels = np.full((size, size), generator.uniform(0.0, 0.3))
        for shape in generator.permutation(3):
            inside = _inside(int(shape), size, generator)
            y[number][inside] = shape + 1
            levels[inside] = generator.uniform(0.6, 1.0)
        grey = (1 - noise) * levels + noise * generator.random((size, size))
        x[number, 0] = (255 * grey).astype(np.uint8)
    return Examples(x, y)


def _inside(shape: int, size: int, generator: np.random.Generator) -> Array:
    """The pixels of one shape at a random place, bool [size, size]."""
    radius = generator.uniform(0.12, 0.22) * size
    down, right = generator.uniform(radius, size - radius, 2)
    rows, columns = np.mgrid[:size, :size] + 0.5
    rows, columns = rows - down, columns - right
    if shape == 0:
        return np.asarray(rows**2 + columns**2 <= radius**2)
    if shape == 1:
        return np.asarray(np.maximum(abs(rows), abs(columns)) <= 0.9 * radius)
    return np.asarray((rows <= radius) & (2 * abs(columns) <= rows + radius))
