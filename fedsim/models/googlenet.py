"""GoogLeNet, from torchvision, without the auxiliary classifiers.

Szegedy et al., "Going deeper with convolutions", CVPR 2015, arXiv:1409.4842.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.models.inputs import Dropout, Stem, image_shape
from fedsim.models.layers import Norm, replace_batch_norm


def googlenet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "batch",
    stem: Stem = "small",
    dropout: Dropout = 0.2,
) -> nn.Sequential:
    """GoogLeNet of torchvision; for small images with a 3x3 first convolution and no pooling in the stem.

    5,602,474 parameters for 3 channels and 10 classes; 5,610,154 with the standard stem.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.
        stem: the first layers: `small` for 32x32 images, `standard` as published for 224x224.
        dropout: the share dropped before the head.

    Raises:
        ValueError: if the images are smaller than 8x8 (32x32 with the standard stem).
    """
    channels, _, _ = image_shape(input_shape, smallest=8 if stem == "small" else 32)
    prepare_torchvision()
    from torchvision import models  # slow to import, so only when one of its models is built

    model = models.googlenet(
        weights=None, num_classes=num_classes, aux_logits=False, init_weights=True, dropout=dropout
    )
    blocks = nn.Sequential(
        OrderedDict(
            stem=_stem(model, channels, stem),
            inception3=nn.Sequential(model.inception3a, model.inception3b, model.maxpool3),
            inception4=nn.Sequential(
                *(getattr(model, f"inception4{letter}") for letter in "abcde"), model.maxpool4
            ),
            inception5=nn.Sequential(model.inception5a, model.inception5b),
            pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout)),
            head=model.fc,
        )
    )
    if norm == "group":
        replace_batch_norm(blocks)
    return blocks


def _stem(model: Any, channels: int, stem: Stem) -> nn.Sequential:
    """The three convolutions before the inception blocks; the first one has torchvision's initial weights."""
    small = stem == "small"
    size, stride = (3, 1) if small else (7, 2)
    first = nn.Conv2d(channels, 64, size, stride, padding=size // 2, bias=False)
    nn.init.trunc_normal_(first.weight, mean=0.0, std=0.01, a=-2, b=2)
    model.conv1.conv = first
    if small:
        return nn.Sequential(OrderedDict(conv1=model.conv1, conv2=model.conv2, conv3=model.conv3))
    names = ("conv1", "maxpool1", "conv2", "conv3", "maxpool2")
    return nn.Sequential(OrderedDict((name, getattr(model, name)) for name in names))
