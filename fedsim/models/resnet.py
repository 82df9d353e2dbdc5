"""Residual networks: ResNet-9, and torchvision's ResNet-18, -34 and -50.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, arXiv:1512.03385.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.models.inputs import Stem, image_shape
from fedsim.models.layers import Norm, Residual, norm2d


def resnet9(input_shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch") -> nn.Sequential:
    """ResNet-9: 3x3 convolutions of 64, 128, 256 and 512 with bias, two residual pairs, global max pooling.

    6,575,370 parameters for 3 channels and 10 classes, 6,621,540 for 100.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.

    Raises:
        ValueError: if the images are smaller than 8x8.
    """
    channels, _, _ = image_shape(input_shape, smallest=8)
    return nn.Sequential(
        OrderedDict(
            prep=_convolution(channels, 64, norm),
            layer1=nn.Sequential(*_convolution(64, 128, norm), nn.MaxPool2d(2), _pair(128, norm)),
            layer2=nn.Sequential(*_convolution(128, 256, norm), nn.MaxPool2d(2)),
            layer3=nn.Sequential(*_convolution(256, 512, norm), nn.MaxPool2d(2), _pair(512, norm)),
            pool=nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten()),
            head=nn.Linear(512, num_classes),
        )
    )


def resnet18(
    input_shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch", stem: Stem = "small"
) -> nn.Sequential:
    """ResNet-18 of torchvision, with a 3x3 stem of stride 1 and no pooling for small images.

    11,173,962 parameters for 3 channels and 10 classes.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.
        stem: the first layers: `small` for 32x32 images, `standard` as published for 224x224.

    Raises:
        ValueError: if the images are smaller than 8x8 (32x32 with the standard stem).
    """
    return _resnet("resnet18", input_shape, num_classes, norm, stem)


def resnet34(
    input_shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch", stem: Stem = "small"
) -> nn.Sequential:
    """ResNet-34 of torchvision, with a 3x3 stem of stride 1 and no pooling for small images.

    21,282,122 parameters for 3 channels and 10 classes; 21,289,802 with the standard stem.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.
        stem: the first layers: `small` for 32x32 images, `standard` as published for 224x224.

    Raises:
        ValueError: if the images are smaller than 8x8 (32x32 with the standard stem).
    """
    return _resnet("resnet34", input_shape, num_classes, norm, stem)


def resnet50(
    input_shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch", stem: Stem = "small"
) -> nn.Sequential:
    """ResNet-50 of torchvision, with a 3x3 stem of stride 1 and no pooling for small images.

    23,520,842 parameters for 3 channels and 10 classes; 23,528,522 with the standard stem.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.
        stem: the first layers: `small` for 32x32 images, `standard` as published for 224x224.

    Raises:
        ValueError: if the images are smaller than 8x8 (32x32 with the standard stem).
    """
    return _resnet("resnet50", input_shape, num_classes, norm, stem)


def _resnet(
    name: str, input_shape: tuple[int, ...], num_classes: int, norm: Norm, stem: Stem
) -> nn.Sequential:
    channels, _, _ = image_shape(input_shape, smallest=8 if stem == "small" else 32)
    prepare_torchvision()
    from torchvision import models  # slow to import, so only when one of its models is built

    model = getattr(models, name)(weights=None, num_classes=num_classes, norm_layer=partial(norm2d, norm))
    return nn.Sequential(
        OrderedDict(
            stem=_stem(model, channels, stem),
            layer1=model.layer1,
            layer2=model.layer2,
            layer3=model.layer3,
            layer4=model.layer4,
            pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            head=model.fc,
        )
    )


def _stem(model: Any, channels: int, stem: Stem) -> nn.Sequential:
    """The layers before the residual blocks; the convolution has torchvision's initial weights."""
    small = stem == "small"
    size, stride = (3, 1) if small else (7, 2)
    first = nn.Conv2d(channels, 64, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    layers = OrderedDict(conv1=first, bn1=model.bn1, relu=model.relu)
    if not small:
        layers["maxpool"] = model.maxpool
    return nn.Sequential(layers)


def _convolution(channels: int, wider: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, wider, 3, padding=1), norm2d(norm, wider), nn.ReLU())


def _pair(channels: int, norm: Norm) -> Residual:
    return Residual(*_convolution(channels, channels, norm), *_convolution(channels, channels, norm))
