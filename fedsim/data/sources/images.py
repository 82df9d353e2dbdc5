"""Helpers of the image loaders: normalisation, augmentation, and the data set itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from fedsim.data.augment import Augment, Step, make_augment
from fedsim.data.dataset import Array, Dataset, Examples, Normalise
from fedsim.errors import FieldError, SpecError

Normalisation: TypeAlias = Literal["channel", "half", "none"]
"""channel: mean 0 and deviation 1 in each channel; half: (x - 0.5) / 0.5; none: 0 to 1."""

Moments: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]


def image_dataset(
    name: str,
    train: Examples,
    test: Examples,
    classes: Sequence[str],
    source: object,
    normalise: Normalisation,
    augment: Sequence[Step],
    moments: Moments | None = None,
    task: Literal["classes", "labels"] = "classes",
) -> Dataset:
    """Make a data set of images.

    Args:
        name: as registered.
        train: uint8 [n, C, H, W].
        test: the same.
        classes: their names.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps of the augmentation, in order.
        source: the place of the files.
        moments: the usual mean and deviation of each channel; by default those of the training images.
        task: one class per image, or several labels.
    """
    return Dataset(
        name=name,
        train=train,
        test=test,
        num_classes=len(classes),
        input_shape=train.x.shape[1:],
        classes=tuple(classes),
        normalise=choose_normalisation(normalise, train.x, moments),
        task=task,
        augment=make_augment(augment),
        source=str(source),
    )


def choose_preparation(
    x: Array, normalise: Normalisation, augment: Sequence[Step]
) -> tuple[Normalise, Augment | None]:
    """Return the normalisation and augmentation of inputs that may be images, features or tokens.

    Args:
        x: images uint8 [n, C, H, W], or features or tokens, which are not changed.
        normalise: the user's choice; `channel` by default.
        augment: the user's choice; none by default.

    Raises:
        SpecError: if either is given, and x does not hold images of uint8.
    """
    if x.dtype == np.uint8:
        return choose_normalisation(normalise, x), make_augment(augment)
    asked: dict[str, object] = {"normalise": normalise} if normalise != "channel" else {}
    asked |= {"augment": augment} if augment else {}
    if asked:
        message = (
            f"is for images of uint8; here an example has the type {x.dtype} and the shape {x.shape[1:]}"
        )
        hint = "remove it, or save images as uint8, whole numbers from 0 to 255"
        raise SpecError([FieldError(name, value, message, hint) for name, value in asked.items()])
    return Normalise(), None


def choose_normalisation(how: Normalisation, images: Array, moments: Moments | None = None) -> Normalise:
    """The normalisation of this name for uint8 images [n, C, H, W]."""
    channels = images.shape[1]
    if how == "none":
        return Normalise(scale=255.0)
    if how == "half":
        return Normalise((0.5,) * channels, (0.5,) * channels, 255.0)
    return Normalise(*(moments or channel_moments(images)), 255.0)


def channel_moments(images: Array) -> Moments:
    """Mean and standard deviation of each channel, on the scale of 0 to 1.

    Args:
        images: uint8 [n, C, H, W]. Counting the 256 values is exact, and needs no copy in floats.
    """
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        shares = np.zeros(256)
        for start in range(0, len(images), 4096):
            shares += np.bincount(images[start : start + 4096, channel].ravel(), minlength=256)
        shares /= max(1.0, shares.sum())
        mean = float(shares @ levels)
        means.append(mean)
        # The deviation of a constant channel is 0, and cannot be a divisor.
        deviations.append(float(np.sqrt(shares @ (levels - mean) ** 2)) or 1.0)
    return tuple(means), tuple(deviations)
