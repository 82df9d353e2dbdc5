"""VGG-16 and VGG-19, from torchvision's configurations.

Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
arXiv:1409.1556.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal, TypeAlias

from torch import nn

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.models.inputs import Dropout, Stem, image_shape
from fedsim.models.layers import AveragePool, replace_batch_norm

VggNorm: TypeAlias = Literal["batch", "group", "none"]


def vgg16(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: VggNorm = "batch",
    classifier: Stem = "small",
    dropout: Dropout = 0.5,
) -> nn.Sequential:
    """VGG-16 with normalisation, the published layers without (`norm: none`).

    The small classifier is one layer on the 512 averaged maps: 14,728,266 parameters for 3 channels and 10
    classes. The standard one has two hidden layers of 4,096 with `dropout`: 134,301,514 without
    normalisation.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the normalisation layers; `none` as published.
        classifier: one layer, or the published three.
        dropout: the share dropped in the standard classifier.

    Raises:
        ValueError: if the images are smaller than 32x32.
    """
    return _vgg("D", input_shape, num_classes, norm, classifier, dropout)


def vgg19(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: VggNorm = "batch",
    classifier: Stem = "small",
    dropout: Dropout = 0.5,
) -> nn.Sequential:
    """VGG-19 with normalisation, the published layers without (`norm: none`).

    The small classifier is one layer on the 512 averaged maps: 20,040,522 parameters for 3 channels and 10
    classes. The standard one has two hidden layers of 4,096 with `dropout`.

    Args:
        input_shape: of one example, [channels, height, width].
        num_classes: outputs of the head.
        norm: the normalisation layers; `none` as published.
        classifier: one layer, or the published three.
        dropout: the share dropped in the standard classifier.

    Raises:
        ValueError: if the images are smaller than 32x32.
    """
    return _vgg("E", input_shape, num_classes, norm, classifier, dropout)


def _vgg(
    configuration: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    norm: VggNorm,
    classifier: Stem,
    dropout: float,
) -> nn.Sequential:
    channels, _, _ = image_shape(input_shape, smallest=32)
    layers = _layers(configuration, norm, channels)
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    stage: list[nn.Module] = []
    for layer in layers:
        stage.append(layer)
        if isinstance(layer, nn.MaxPool2d):
            blocks[f"stage{len(blocks) + 1}"] = nn.Sequential(*stage)
            stage = []
    width = 512
    if classifier == "small":
        blocks["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    else:
        width = 4096
        seven = (AveragePool(7), nn.Flatten())
        blocks["fc1"] = nn.Sequential(*seven, nn.Linear(512 * 49, width), nn.ReLU(), nn.Dropout(dropout))
        blocks["fc2"] = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
    blocks["head"] = nn.Linear(width, num_classes)
    return _init_weights(nn.Sequential(blocks))


def _layers(configuration: str, norm: VggNorm, channels: int) -> Any:
    """The convolutional layers of torchvision, for this number of channels."""
    prepare_torchvision()
    from torchvision.models.vgg import cfgs, make_layers  # slow to import, so only when one is built

    layers = make_layers(cfgs[configuration], batch_norm=norm != "none")
    if channels != 3:
        layers[0] = nn.Conv2d(channels, 64, 3, padding=1)
    return replace_batch_norm(layers) if norm == "group" else layers


def _init_weights(model: nn.Sequential) -> nn.Sequential:
    """The model with torchvision's initial weights; normalisation layers keep theirs."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model
