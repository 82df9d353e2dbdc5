"""The small convolutional networks of three federated-learning papers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedsim.models.inputs import image_shape
from fedsim.models.layers import Norm, norm2d
from fedsim.models.lenet import side_after_convolutions


def fedavg_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """The CNN of McMahan et al. (arXiv:1602.05629) without padding: conv 32 and 64 (5x5), then 512, classes.

    582,026 parameters for 1x28x28 and 10 classes: 832 + 51,264 + 524,800 + 5,130 by block.

    Raises:
        ValueError: if the images are too small for two 5x5 convolutions with pooling.
    """
    channels, height, width = image_shape(input_shape, smallest=16)
    features = 64 * side_after_convolutions(height) * side_after_convolutions(width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            fc1=nn.Sequential(nn.Flatten(), nn.Linear(features, 512), nn.ReLU()),
            head=nn.Linear(512, num_classes),
        )
    )


def moon_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """The simple CNN of MOON (arXiv:2103.16257): LeNet-5's body, a projection to 256, the head.

    Blocks: the extractor is conv1 and conv2 (16x5x5 maps of 32x32 images), the classifier fc1 and fc2, then
    the projection with the 256 features that the head receives. 92,626 parameters for 3x32x32 and 10
    classes.

    Raises:
        ValueError: if the images are too small for two 5x5 convolutions with pooling.
    """
    channels, height, width = image_shape(input_shape, smallest=16)
    features = 16 * side_after_convolutions(height) * side_after_convolutions(width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            fc1=nn.Sequential(nn.Flatten(), nn.Linear(features, 120), nn.ReLU()),
            fc2=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            projection=nn.Sequential(nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256)),
            head=nn.Linear(256, num_classes),
        )
    )


def fedgen_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    form: Literal["auto", "plain", "pooled"] = "auto",
    norm: Norm = "batch",
) -> nn.Sequential:
    """The CNN of FedGen (arXiv:2105.10056): normalised 3x3 convolutions of stride 2, 32 features, the head.

    `plain` has conv 6 and 16: 26,434 parameters for 1x28x28 and 10 classes, 26,962 for 26. `pooled` has conv
    16, 32 and 64, each with 2x2 pooling: 25,954 parameters for 3x84x84 (CelebA) and 2 classes. `auto` is
    `pooled` from 64x64 on, and `plain` below.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        form: `plain`, `pooled`, or `auto` to choose by the images' size.
        norm: the kind of the normalisation layers.

    Raises:
        ValueError: if the images are too small for the form.
    """
    channels, height, width = image_shape(input_shape, smallest=4)
    pooled = form == "pooled" or (form == "auto" and min(height, width) >= 64)
    if pooled:
        image_shape(input_shape, smallest=43)
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for number, wider in enumerate((16, 32, 64) if pooled else (6, 16), start=1):
        layers = [nn.Conv2d(channels, wider, 3, stride=2, padding=1), norm2d(norm, wider), nn.ReLU()]
        blocks[f"conv{number}"] = nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pooled else []))
        channels, height, width = wider, _side_after_stride(height, pooled), _side_after_stride(width, pooled)
    blocks["fc1"] = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 32))
    blocks["head"] = nn.Linear(32, num_classes)
    return nn.Sequential(blocks)


def _side_after_stride(side: int, pooled: bool) -> int:
    """The length of a side after a convolution of stride two, and 2x2 pooling if `pooled`."""
    return (side + 1) // 2 // (2 if pooled else 1)
