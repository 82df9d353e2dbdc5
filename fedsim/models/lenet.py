"""LeNet-5, in the form of the federated-learning literature.

LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE 1998.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedsim.models.inputs import image_shape


def lenet5(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling: conv 6 and 16 (5x5), then 120, 84, classes.

    62,006 parameters for 3x32x32 and 10 classes, 44,426 for 1x28x28 (unpadded, 256 features before the
    first fully connected layer).

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
            head=nn.Linear(84, num_classes),
        )
    )


def side_after_convolutions(side: int) -> int:
    """The length of a side after two unpadded 5x5 convolutions, each with 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2
