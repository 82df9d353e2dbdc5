"""Checks of the input shape that a model's function gets."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from fedsim.base.parameters import Range

Stem: TypeAlias = Literal["small", "standard"]
"""The first layers of an ImageNet model: `small` for 32x32 images, `standard` as published for 224x224."""

Dropout: TypeAlias = Annotated[float, Range(minimum=0, below=1)]


def image_shape(input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The (channels, height, width) of an image input.

    Raises:
        ValueError: if the input is no image, or smaller than `smallest` on a side.
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"needs images [channels, height, width]; this data has inputs of shape {input_shape}"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ValueError(f"needs images of at least {smallest}x{smallest}; these are {height}x{width}")
    return channels, height, width


def token_length(input_shape: tuple[int, ...], vocabulary: int) -> int:
    """The length of a token input, which is padded with token 0.

    Raises:
        ValueError: if the input is no sequence of tokens.
    """
    if vocabulary < 1 or len(input_shape) != 1:
        raise ValueError(
            f"needs texts as token numbers [length]; this data has inputs of shape {input_shape} "
            f"with a vocabulary of {vocabulary}"
        )
    return input_shape[0]
