"""Digests (SHA-256) of the server state and of the client states.

Two runs that computed the same bits have the same digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

NOT_IN_DIGEST = {"digest": False}
"""Metadata of a dataclass field that only describes a round, and that no later round reads."""


def digest(value: Any) -> str:
    """Return the SHA-256 of a state: its names, shapes, number types and bits, in a fixed order.

    Fields with the metadata `NOT_IN_DIGEST` are left out.

    Args:
        value: a `ServerState`, or a tree, list, tensor, number, string or None.

    Raises:
        TypeError: the state holds a value of another type.
    """
    sha = hashlib.sha256()
    _update_hash(sha, value)
    return sha.hexdigest()


def client_state_digest(client: int, client_state: Any) -> bytes:
    """Return the SHA-256 of one client's number and client state."""
    sha = hashlib.sha256(f"client {client}\n".encode())
    _update_hash(sha, client_state)
    return sha.digest()


class ClientStatesDigest:
    """The digest of all client states; an update costs only the client states that changed.

    The digest is the sum of the clients' SHA-256 values, modulo 2^256. A sum does not depend on the order of
    the clients, and one client's old term can be replaced by its new one. One hash over everything would read
    every client state again in every round. (Somebody could construct two sets of client states with the same
    sum, but it does not happen by accident.)
    """

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._sum = 0

    def update(self, digests: Mapping[int, bytes]) -> None:
        """Replace the SHA-256 values of the client states that changed.

        Args:
            digests: {client: SHA-256}, see `client_state_digests`.
        """
        for client, state_digest in digests.items():
            old = self._digests.get(client, b"")
            self._sum += int.from_bytes(state_digest, "big") - int.from_bytes(old, "big")
            self._digests[client] = state_digest
        self._sum %= 1 << 256

    def hexdigest(self) -> str:
        """Return the sum as 64 hexadecimal digits."""
        return f"{self._sum:064x}"


def client_state_digests(client_states: Mapping[int, Any]) -> dict[int, bytes]:
    """Return {client: SHA-256 of its client state}, as `ClientStatesDigest.update` takes it."""
    return {
        client: client_state_digest(client, client_state) for client, client_state in client_states.items()
    }


def _array(sha: Any, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as a NumPy array.

    Where NumPy lacks the number type (bfloat16, ...), hash its name and shape and return the bytes.
    """
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        array = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _update_hash(sha: Any, value: Any) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        hashed = (f.name for f in fields(value) if f.metadata.get("digest", True))
        value = {name: getattr(value, name) for name in hashed}
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
