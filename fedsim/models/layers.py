"""The layers that fedsim adds to `torch.nn`: normalisation that a job can rely on, and residual blocks."""

from __future__ import annotations

from math import gcd
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm: TypeAlias = Literal["batch", "group"]


def norm2d(norm: Norm, channels: int) -> nn.Module:
    """The normalisation of `channels` feature maps, BatchNorm or GroupNorm."""
    return nn.BatchNorm2d(channels) if norm == "batch" else group_norm(channels)


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with at most 32 groups, each of at least two channels.

    It has as many parameters as BatchNorm and no running statistics, so that clients can be stacked and a
    batch of one is nothing special.
    """
    return nn.GroupNorm(gcd(channels // 2, 32) if channels % 2 == 0 else 1, channels)


def replace_batch_norm(module: nn.Module) -> nn.Module:
    """The module with GroupNorm in the place of every BatchNorm; changed in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, group_norm(child.num_features))
    return module


class Residual(nn.Sequential):
    """`x + layers(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what the layers make of it; both of one shape."""
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + out


class BatchNorm(_BatchNorm):
    """BatchNorm for any number of dimensions that survives a last batch of one example.

    Where a channel has a single value, as with one example on a 1x1 map, there are no batch statistics;
    `torch.nn` raises. Here such a batch is normalised by the running statistics and leaves them as they are.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Any shape `[batch, channels, ...]` will do."""

    def forward(self, input: Tensor) -> Tensor:
        """The input `[batch, channels, ...]`, normalised per channel."""
        if self.running_mean is None or not (self.training and _single(input)):
            return super().forward(input)
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class AveragePool(nn.Module):
    """Maps averaged to `size` by `size` places; see `averaged`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """Maps `[batch, channels, size, size]` of those `[batch, channels, height, width]`."""
        return average_maps(input, self.size)


def average_maps(x: Tensor, size: int) -> Tensor:
    """Maps `[batch, channels, height, width]` averaged to `size` by `size` places.

    Where windows overlap, torch's own gradient is added up on a GPU in any order, so that two runs differ in
    their last bits; there it is done by two matrices. On a CPU it is torch's own, which is faster.
    """
    if x.device.type == "cpu" or not (x.shape[-2] % size or x.shape[-1] % size):
        return F.adaptive_avg_pool2d(x, size)
    return average_by_matrices(x, size)


def average_by_matrices(x: Tensor, size: int) -> Tensor:
    """What `averaged` gives, but for rounding, by matrices whose rows are the windows."""
    rows, columns = (_windows(length, size, x) for length in x.shape[-2:])
    return rows @ x @ columns.T


def _windows(length: int, size: int, like: Tensor) -> Tensor:
    """What each of `length` places counts in the mean of each of `size` windows, `[size, length]`."""
    # Made where it is used, of no values from elsewhere: it may be recorded as part of a CUDA graph.
    window = torch.arange(size, device=like.device).unsqueeze(1)
    place = torch.arange(length, device=like.device)
    inside = (place >= window * length // size) & (place * size < (window + 1) * length)
    return inside.to(like.dtype) / inside.sum(1, keepdim=True)


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """`BatchNorm` as a function; while training, `mean` and `variance` are updated in place."""
    return F.batch_norm(x, mean, variance, weight, bias, training and not _single(x), momentum, eps)


def guard_batch_norm(module: nn.Module) -> nn.Module:
    """The module with every BatchNorm inside it made a `BatchNorm` of this file; changed in place.

    Raises:
        ValueError: if one averages over all batches so far: its counter would go from client to client.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.momentum is None:
            raise ValueError(f"{name}: BatchNorm needs a momentum, and this one has None; 0.1 is usual")
        if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            layer.__class__ = BatchNorm  # the same attributes, another forward
    return module


def has_running_statistics(module: nn.Module) -> bool:
    """Whether a layer of the module keeps running statistics of its batches."""
    return any(isinstance(m, _BatchNorm) and m.running_mean is not None for m in module.modules())


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether a layer of the module looks across the examples of a batch."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def _single(x: Tensor) -> bool:
    """Whether every channel of `[batch, channels, ...]` has one value only."""
    return x.numel() == x.shape[1]
