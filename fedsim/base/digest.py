"""Fingerprints of the server state and of the clients' memories: two runs can be compared by eye."""

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
    _update_hash(sha, value)
    return sha.hexdigest()


def client_state_digest(client: int, client_state: Any) -> bytes:
    """SHA-256 of what one client keeps, together with its number."""
    sha = hashlib.sha256(f"client {client}\n".encode())
    _update_hash(sha, client_state)
    return sha.digest()


class ClientStatesDigest:
    """A digest of all the clients' memories that is brought up to date in the time of those that changed.

    It is the sum, modulo 2^256, of each client's SHA-256: a sum does not depend on the order in which the
    clients came, and the term of one client can be taken out again and its new one put in. A hash over
    everything would cost a pass over every client that was ever visited in every round. (Two sets of
    memories with one sum could be made on purpose, but do not come about by accident.)
    """

    def __init__(self) -> None:
        self._marks: dict[int, bytes] = {}
        self._sum = 0

    def update(self, marks: Mapping[int, bytes]) -> None:
        """Take the marks of the memories that changed; see `memory_mark`."""
        for client, mark in marks.items():
            old = self._marks.get(client, b"")
            self._sum += int.from_bytes(mark, "big") - int.from_bytes(old, "big")
            self._marks[client] = mark
        self._sum %= 1 << 256

    def hexdigest(self) -> str:
        """The sum, as 64 hexadecimal digits."""
        return f"{self._sum:064x}"


def client_state_digests(client_states: Mapping[int, Any]) -> dict[int, bytes]:
    """The mark of each of these memories, as `Fingerprint` takes them."""
    return {
        client: client_state_digest(client, client_state) for client, client_state in client_states.items()
    }


def _array(sha: Any, tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array; number types that NumPy lacks (bfloat16, ...) by name and bits."""
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        array = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _update_hash(sha: Any, value: Any) -> None:
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
            _update_hash(sha, value[key])
    elif isinstance(value, list | tuple):
        sha.update(f"list {len(value)}\n".encode())
        for item in value:
            _update_hash(sha, item)
    elif value is None or isinstance(value, bool | int | float | str):
        sha.update(f"{value!r}\n".encode())
    else:
        raise TypeError(
            f"a server state cannot hold {type(value).__name__}; use trees of tensors, numbers or strings"
        )
