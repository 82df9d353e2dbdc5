"""Generated data: Gaussian classes and images of any size, with a parameter for their difficulty."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated

import numpy as np

from fedsim.base import rng
from fedsim.base.memory_usage import require_memory
from fedsim.base.parameters import Range, Seed, make_spec_error
from fedsim.data.augment import Steps
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.decode import Channels
from fedsim.data.places import DataRoots
from fedsim.data.sources.images import image_dataset

MOST_VALUES = 2**31
"""Largest number of values of all examples together: 8 GiB of features, 2 GiB of pixels."""

MOST_PATTERNS = 2**24
"""Largest number of values of all classes' centres or patterns, which are held in memory."""


def synthetic(
    _places: DataRoots,
    *,
    examples: Annotated[int, Range(1, 50_000_000)] = 10_000,
    test_examples: Annotated[int, Range(1, 10_000_000)] = 2_000,
    classes: Annotated[int, Range(2, 100_000)] = 10,
    dims: Annotated[int, Range(1, 100_000)] = 32,
    difficulty: Annotated[float, Range(minimum=0, below=0.5)] = 0.05,
    seed: Seed = 0,
) -> Dataset:
    """Gaussian classes of unit variance around centres at equal distances.

    With D the distance between two centres, an example is nearer to one given other centre than to its own
    with probability Phi(-D / 2); `difficulty` is that probability, and D follows from it. The distances are
    exactly equal if `classes <= dims`, and equal on average otherwise.

    Args:
        examples: number of training examples.
        test_examples: number of test examples.
        classes: number of classes, equally likely.
        dims: features per example, float32.
        difficulty: from 0 (classes do not overlap) to just under 0.5 (classes are nearly the same).
        seed: of the data, independent of the experiment's seed.

    Raises:
        SpecError: if there are too many values.
        DataError: if they are larger than the memory.
    """
    check_features(examples=examples, test_examples=test_examples, classes=classes, dims=dims)
    require_memory("the generated data", 4 * (examples + test_examples) * dims)
    distance = -2 * NormalDist().inv_cdf(max(difficulty, 1e-9))
    centres = _directions(classes, dims, seed) * (distance / np.sqrt(2))
    parts = [_draw_features(centres, n, seed, part) for part, n in enumerate((examples, test_examples))]
    return Dataset(
        name="synthetic",
        train=parts[0],
        test=parts[1],
        num_classes=classes,
        input_shape=(dims,),
        classes=tuple(map(str, range(classes))),
        source=f"drawn with seed {seed}",
    )


def synthetic_images(
    _places: DataRoots,
    *,
    examples: Annotated[int, Range(1, 10_000_000)] = 10_000,
    test_examples: Annotated[int, Range(1, 1_000_000)] = 2_000,
    classes: Annotated[int, Range(2, 10_000)] = 10,
    size: Annotated[int, Range(8, 512)] = 32,
    channels: Channels = 3,
    contrast: Annotated[float, Range(above=0, maximum=1)] = 0.3,
    seed: Seed = 0,
    augment: Steps = (),
) -> Dataset:
    """Images of any size to try convolutional models: a coarse pattern per class, in noise; uint8.

    Args:
        examples: number of training examples.
        test_examples: number of test examples.
        classes: number of classes, equally likely.
        size: height and width.
        channels: 3 for colour, 1 for grey.
        contrast: the pattern's share of each pixel; the rest is noise. A small share is hard.
        seed: of the data, independent of the experiment's seed.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        SpecError: if there are too many values.
        DataError: if they are larger than the memory.
    """
    check_pixels(
        examples=examples, test_examples=test_examples, classes=classes, size=size, channels=channels
    )
    require_memory("the generated data", (examples + test_examples) * channels * size * size)
    coarse = rng.stream(seed, "synthetic-patterns").random((classes, channels, 4, 4), dtype=np.float32)
    place = np.arange(size) * 4 // size
    patterns = coarse[:, :, place][:, :, :, place] * (255 * contrast)
    parts = [
        _draw_images(patterns, n, 1 - contrast, seed, part)
        for part, n in enumerate((examples, test_examples))
    ]
    names = tuple(map(str, range(classes)))
    return image_dataset(
        "synthetic_images",
        parts[0],
        parts[1],
        names,
        normalise="channel",
        augment=augment,
        source=f"drawn with seed {seed}",
    )


def check_features(*, examples: int, test_examples: int, classes: int, dims: int, **_: object) -> None:
    """Raise an error for Gaussian classes that are too large for memory, before they are drawn.

    Raises:
        SpecError: if they are too large.
    """
    _require_at_most("dims", dims, (examples + test_examples) * dims, MOST_VALUES, "features of all examples")
    _require_at_most("dims", dims, classes * dims, MOST_PATTERNS, "features of all classes")


def check_pixels(
    *, examples: int, test_examples: int, classes: int, size: int, channels: int, **_: object
) -> None:
    """Raise an error for images that are too large for memory, before they are drawn.

    Raises:
        SpecError: if they are too large.
    """
    image = channels * size * size
    _require_at_most("size", size, (examples + test_examples) * image, MOST_VALUES, "pixels of all images")
    _require_at_most("size", size, classes * image, MOST_PATTERNS, "pixels of all classes")


def _require_at_most(field: str, value: int, values: int, most: int, what: str) -> None:
    if values > most:
        raise make_spec_error(
            field, value, f"makes {values:,} {what}", f"at most {most:,}: use fewer or smaller examples"
        )


def _draw_images(patterns: Array, count: int, share: float, seed: int, part: int) -> Examples:
    generator = rng.stream(seed, "synthetic-images", part)
    y = generator.integers(len(patterns), size=count, dtype=np.int64)
    x = np.empty((count, *patterns.shape[1:]), np.uint8)
    # In slices: the floats then need less memory than the images.
    for start in range(0, count, 1024):
        some = y[start : start + 1024]
        noise = generator.integers(256, size=(len(some), *patterns.shape[1:]), dtype=np.uint8)
        x[start : start + 1024] = patterns[some] + noise * np.float32(share)
    return Examples(x, y)


def _directions(classes: int, dims: int, seed: int) -> Array:
    """Unit vectors [classes, dims]: orthogonal if possible, random otherwise."""
    drawn = rng.stream(seed, "synthetic-centres").standard_normal((classes, dims))
    if classes <= dims:
        drawn = np.linalg.qr(drawn.T)[0].T
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def _draw_features(centres: Array, count: int, seed: int, part: int) -> Examples:
    generator = rng.stream(seed, "synthetic-examples", part)
    y = generator.integers(len(centres), size=count, dtype=np.int64)
    x = generator.standard_normal((count, centres.shape[1]), dtype=np.float32)
    x += centres.astype(np.float32)[y]
    return Examples(x, y)
