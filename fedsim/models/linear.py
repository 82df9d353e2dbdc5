"""Models that flatten any input first."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from fedsim.base.parameters import Count, Layers


def logistic(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer from the flattened input to the classes."""
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), head=nn.Linear(prod(input_shape), num_classes)),
    )


def mlp(
    input_shape: tuple[int, ...], num_classes: int, *, hidden: Count = 64, layers: Layers = 1
) -> nn.Sequential:
    """A multi-layer perceptron: `layers` hidden layers of `hidden` units with ReLU, then the head.

    Args:
        input_shape: of one example, any.
        num_classes: outputs of the head.
        hidden: units of each hidden layer.
        layers: number of hidden layers.
    """
    blocks: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = prod(input_shape)
    for number in range(1, layers + 1):
        blocks[f"fc{number}"] = nn.Sequential(nn.Linear(width, hidden), nn.ReLU())
        width = hidden
    blocks["head"] = nn.Linear(width, num_classes)
    return nn.Sequential(blocks)
