"""Arithmetic on trees: nested dicts of tensors, such as parameters, control variates and client memories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Tree: TypeAlias = Mapping[str, Any]
"""A nested mapping whose leaves are tensors (or, in transit, NumPy arrays)."""


def map(function: Callable[..., Any], *trees: Tree) -> dict[str, Any]:
    """Apply `function` leaf by leaf to trees of one shape.

    Raises:
        ValueError: if the trees have different keys.
    """
    first = trees[0]
    for other in trees[1:]:
        if other.keys() != first.keys():
            raise ValueError(f"trees differ in their keys: {sorted(first)} and {sorted(other)}")
    return {
        key: map(function, *(t[key] for t in trees))
        if isinstance(value, Mapping)
        else function(*(t[key] for t in trees))
        for key, value in first.items()
    }


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted path, in the tree's own order."""
    for key, value in tree.items():
        if type(value) is not Tensor and isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def add(a: Tree, b: Tree) -> dict[str, Any]:
    """A + b."""
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> dict[str, Any]:
    """A - b."""
    return map(torch.sub, a, b)


def scale(a: Tree, factor: float | Tensor) -> dict[str, Any]:
    """Factor * a."""
    return map(lambda x: x * factor, a)


def zeros_like(a: Tree) -> dict[str, Any]:
    """A tree of zeros of a's shape."""
    return map(torch.zeros_like, a)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees of one shape; a scalar."""
    total = torch.zeros(())
    for (_, x), (_, y) in zip(leaves(a), leaves(b), strict=True):
        total = total + (x * y).sum()
    return total


def select(a: Tree, keys: Collection[str]) -> dict[str, Any]:
    """The part of `a` under these top-level keys, in a's order."""
    return {key: value for key, value in a.items() if key in keys}


def drop(a: Tree, keys: Collection[str]) -> dict[str, Any]:
    """The part of `a` not under these top-level keys, in a's order."""
    return {key: value for key, value in a.items() if key not in keys}


def cast_like(a: Tree, pattern: Tree) -> dict[str, Any]:
    """`a` in the number types of `pattern`: where a mean taken in float64 is rounded, once."""
    return map(lambda x, like: x.to(like.dtype), a, pattern)


Layout: TypeAlias = tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
"""Where the numbers of a flattened tree belong: (path, shape) of every leaf, in order."""


def layout(tree: Tree, prefix: tuple[str, ...] = ()) -> Layout:
    """The paths and shapes of a tree's leaves, in the tree's own order."""
    found: list[tuple[tuple[str, ...], tuple[int, ...]]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found += layout(value, (*prefix, key))
        else:
            found.append(((*prefix, key), tuple(value.shape)))
    return tuple(found)


@torch.no_grad()
def flatten(tree: Tree) -> Tensor:
    """All the tree's numbers in one float64 vector, in the order of `layout`."""
    parts = [leaf.reshape(-1) for _, leaf in leaves(tree)]
    return torch.cat(parts).to(torch.float64) if parts else torch.zeros(0, dtype=torch.float64)


def unflatten(vector: Tensor, shapes: Layout) -> dict[str, Any]:
    """The tree of this layout over (views of) a vector."""
    tree: dict[str, Any] = {}
    start = 0
    for path, shape in shapes:
        into = tree
        for key in path[:-1]:
            into = into.setdefault(key, {})
        size = prod(shape)
        into[path[-1]] = vector[start : start + size].view(shape)
        start += size
    return tree


def to_channels_last(tensor: Tensor) -> Tensor:
    """The same numbers, laid out as convolutions on a CPU like them: images and kernels with channels last.

    Measured on the small CNNs, training steps take a tenth to a quarter less time, and scoring half.
    """
    if tensor.dim() != 4 or tensor.device.type != "cpu":
        return tensor
    if tensor.shape[1] == 1 and tensor.is_contiguous():
        # With one channel both layouts are the same numbers in the same places, and torch would keep the
        # strides of the other one; then all that follows a first convolution would be laid out wrongly.
        return tensor.view(*tensor.shape[:1], *tensor.shape[2:], 1).permute(0, 3, 1, 2)
    return tensor.contiguous(memory_format=torch.channels_last)


def to_numpy(tree: Tree) -> dict[str, Any]:
    """The same tree over NumPy arrays: the form in which trees travel between processes."""
    return map(lambda x: x.detach().cpu().contiguous().numpy(), tree)


def wrap_array(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over the array's own memory, which must not be written: it may be another process's too.

    Arrays out of an object store are read-only, which torch has no notion of and warns about; the view made
    here does not say so.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_WritableView(array)))


def send_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for what the device has still to do.

    A plain copy to a GPU waits until all that was asked of it before is done.
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class _WritableView:
    """The same memory, described to NumPy without its read-only mark."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def from_numpy(tree: Tree, device: torch.device | None = None) -> dict[str, Any]:
    """The same tree over tensors; on the CPU they share the arrays' memory, so they must not be written."""
    if device is None or device.type == "cpu":
        return map(wrap_array, tree)
    return map(lambda x: wrap_array(x).to(device), tree)
