"""Residual networks: ResNet-9, and torchvision's ResNet-18, -34 and -50.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, arXiv:1512.03385.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
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


def _torchvision_resnet(depth: int, size: str) -> Callable[..., nn.Sequential]:
    """Make the function that builds torchvision's ResNet of this depth."""

    def build(
        input_shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch", stem: Stem = "small"
    ) -> nn.Sequential:
        return _resnet(f"resnet{depth}", input_shape, num_classes, norm, stem)

    build.__name__ = build.__qualname__ = f"resnet{depth}"
    build.__doc__ = f"""ResNet-{depth} of torchvision; small images: a 3x3 stem of stride 1, no pooling.

    {size}

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the kind of the normalisation layers.
        stem: the first layers: `small` for 32x32 images, `standard` as published for 224x224.

    Raises:
        ValueError: if the images are smaller than 8x8 (32x32 with the standard stem).
    """
    return build


_SIZE = "{} parameters for 3 channels and 10 classes; {} with the standard stem."

resnet18 = _torchvision_resnet(18, "11,173,962 parameters for 3 channels and 10 classes.")
resnet34 = _torchvision_resnet(34, _SIZE.format("21,282,122", "21,289,802"))
resnet50 = _torchvision_resnet(50, _SIZE.format("23,520,842", "23,528,522"))


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
