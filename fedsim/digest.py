"""A fingerprint of a server state: two runs of one experiment can be compared by eye."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def digest(value: Any) -> str:
    """SHA-256 of everything in a state: names, shapes, number types and bits, in a fixed order.

    Args:
        value: a `ServerState`, or a tree, list, tensor, number, string or None.

    Raises:
        TypeError: on a value of another type, which could not be compared either.
    """
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()


def _array(sha: Any, tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array; number types that NumPy lacks (bfloat16, ...) by name and bits."""
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        array = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _feed(sha: Any, value: Any) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Tensor):
        value = _array(sha, value.detach().cpu().contiguous())
    if isinstance(value, np.ndarray):
        sha.update(f"array {value.dtype.str} {value.shape}\n".encode())
        sha.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Mapping):
        sha.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=str):
            sha.update(f"{key!r}\n".encode())
            _feed(sha, value[key])
    elif isinstance(value, list | tuple):
        sha.update(f"list {len(value)}\n".encode())
        for item in value:
            _feed(sha, item)
    elif value is None or isinstance(value, bool | int | float | str):
        sha.update(f"{value!r}\n".encode())
    else:
        raise TypeError(
            f"a server state cannot hold {type(value).__name__}; use trees of tensors, numbers or strings"
        )
