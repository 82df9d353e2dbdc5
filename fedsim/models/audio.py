"""A small classifier of log-mel spectrograms; models of images also take them, as images of one channel."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedsim.base.parameters import Count
from fedsim.models.inputs import image_shape
from fedsim.models.layers import Norm, Residual, norm2d


def mel_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    kind: Literal["plain", "residual"] = "plain",
    width: Count = 32,
    norm: Norm = "group",
) -> nn.Sequential:
    """A small CNN for log-mel spectrograms, such as 1x32x32 for one second of speech.

    Three stages of `width`, `2 width` and `4 width` maps, each followed by 2x2 pooling. `plain` has one 3x3
    convolution in each stage, `residual` adds a residual convolution to each. The head takes the average over
    time and frequency.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        kind: with or without residual convolutions.
        width: maps of the first stage.
        norm: the kind of the normalisation layers.

    Raises:
        ValueError: if the spectrograms are smaller than 8x8.
    """
    channels, _, _ = image_shape(input_shape, smallest=8)
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for number, wider in enumerate((width, 2 * width, 4 * width), start=1):
        layers = [nn.Conv2d(channels, wider, 3, padding=1), norm2d(norm, wider), nn.ReLU(), nn.MaxPool2d(2)]
        if kind == "residual":
            layers.append(Residual(nn.Conv2d(wider, wider, 3, padding=1), norm2d(norm, wider), nn.ReLU()))
        blocks[f"stage{number}"] = nn.Sequential(*layers)
        channels = wider
    blocks["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    blocks["head"] = nn.Linear(channels, num_classes)
    return nn.Sequential(blocks)
