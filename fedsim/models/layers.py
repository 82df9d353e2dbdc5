"""The layers that fedsim adds to `torch.nn`: reproducible normalisation and pooling, and residual blocks."""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Norm: TypeAlias = Literal["batch", "group"]


def norm2d(norm: Norm, channels: int) -> nn.Module:
    """The normalisation of `channels` feature maps, BatchNorm or GroupNorm."""
    return nn.BatchNorm2d(channels) if norm == "batch" else group_norm(channels)


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with at most 32 groups, each of at least two channels.

    It has as many parameters as BatchNorm and no running statistics: clients can be stacked, and a batch of
    one example is no special case.
    """
    return nn.GroupNorm(gcd(channels // 2, 32) if channels % 2 == 0 else 1, channels)


def replace_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm of a module by GroupNorm, in place; return the module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, group_norm(child.num_features))
    return module


class Residual(nn.Sequential):
    """`x + layers(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        """The input plus the layers' output; both of one shape."""
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + out


class BatchNorm(_BatchNorm):
    """BatchNorm for any number of dimensions that accepts a last batch of one example.

    If a channel has a single value, as with one example on a 1x1 map, there are no batch statistics, and
    `torch.nn` raises an error. Here such a batch is normalised by the running statistics and does not change
    them.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any shape `[batch, channels, ...]`."""

    def forward(self, input: Tensor) -> Tensor:
        """The input `[batch, channels, ...]`, normalised per channel."""
        if self.running_mean is None or not (self.training and _has_one_value(input)):
            return super().forward(input)
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class AveragePool(nn.Module):
    """Average maps to `size` by `size` places; see `average_maps`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """Turn maps `[batch, channels, height, width]` into `[batch, channels, size, size]`."""
        return average_maps(input, self.size)


def average_maps(x: Tensor, size: int) -> Tensor:
    """Average maps `[batch, channels, height, width]` to `size` by `size` places.

    With overlapping windows, torch's gradient on a GPU is summed in any order, and two runs differ in their
    last bits. There, two matrix products replace it. On a CPU torch's function is used, which is faster.
    """
    if x.device.type == "cpu" or not (x.shape[-2] % size or x.shape[-1] % size):
        return F.adaptive_avg_pool2d(x, size)
    return average_by_matrices(x, size)


def average_by_matrices(x: Tensor, size: int) -> Tensor:
    """The result of `average_maps` up to rounding, by matrices whose rows are the windows."""
    rows, columns = (_windows(length, size, x) for length in x.shape[-2:])
    return rows @ x @ columns.T


def _windows(length: int, size: int, like: Tensor) -> Tensor:
    """The weight of each of `length` places in the mean of each of `size` windows, `[size, length]`."""
    # Made here from constants only: a CUDA graph may record it.
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
    return F.batch_norm(x, mean, variance, weight, bias, training and not _has_one_value(x), momentum, eps)


def guard_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm of a module by this file's `BatchNorm`, in place; return the module.

    Raises:
        ValueError: if a layer averages over all batches (momentum None): its counter would pass from client
            to client.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.momentum is None:
            raise ValueError(f"{name}: BatchNorm needs a momentum; this one has None, and 0.1 is usual")
        if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            layer.__class__ = BatchNorm  # the same attributes, another forward
        elif isinstance(layer, _BatchNorm) and not isinstance(layer, BatchNorm):
            layer.__class__ = _guard_class(type(layer))  # type: ignore[arg-type]
    return module


@cache
def _guard_class(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """A library's own BatchNorm that takes a batch of one value per channel, as `BatchNorm` does."""

    def forward(self: Any, x: Tensor, *more: Any) -> Tensor:
        guarded = self.training and self.running_mean is not None and _has_one_value(x)
        self.training = self.training and not guarded
        try:
            output: Tensor = kind.forward(self, x, *more)
        finally:
            self.training = self.training or guarded
        return output

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def has_running_statistics(module: nn.Module) -> bool:
    """Whether a layer of the module has running statistics."""
    return any(isinstance(m, _NormBase) and m.running_mean is not None for m in module.modules())


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether a layer of the module depends on several examples of a batch."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def list_batch_norm_keys(module: nn.Module) -> list[str]:
    """List the parameters and buffers of all BatchNorm layers of a module, by their names in it."""
    return [
        f"{path}.{name}" if path else name
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in layer.state_dict()
    ]


def _has_one_value(x: Tensor) -> bool:
    """Whether every channel of `[batch, channels, ...]` has only one value."""
    return x.numel() == x.shape[1]
