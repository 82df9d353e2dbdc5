"""What a payload would cost on a real network.

Traffic is counted, not measured: from the payloads as each client would send them, before any reduction.
Numbers cost what they take in the dense formats that the papers count: 4 bytes for a float32 and for an
integer (a count, an index), 2 for a half-precision float. A value sent without its position is dense; a
kept entry of a sparse payload costs its value and its index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree

Charge: TypeAlias = Callable[[str, Tree], int]
"""From a payload's name and tree to its bytes."""

NUMBER_BYTES = 4
"""Of one number that travels alone."""

PAIR_BYTES = 2 * NUMBER_BYTES
"""Of a kept entry of a sparse payload: its value and its index."""

_FLOAT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Traffic:
    """Simulated bytes of one round, summed over the clients that took part.

    Attributes:
        down, up: to the clients, and from them.
        by_payload: both directions of each payload.
        personal: what went down besides, to everybody whose own model was scored after the round. It is no
            part of `down`: a federation sends its last model once, however often it is scored here.
    """

    down: int = 0
    up: int = 0
    by_payload: Mapping[str, int] = field(default_factory=dict)
    personal: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        both = Counter(self.by_payload) + Counter(other.by_payload)
        personal = self.personal + other.personal
        return Traffic(self.down + other.down, self.up + other.up, dict(both), personal)

    def scale(self, times: float) -> Traffic:
        """So many times this traffic, in whole bytes."""
        sizes = {name: round(times * size) for name, size in self.by_payload.items()}
        ways = (self.down, self.up, self.personal)
        down, up, personal = (round(times * size) for size in ways)
        return Traffic(down, up, sizes, personal)


def leaf_bytes(leaf: Any) -> int:
    """Bytes of one tensor or array."""
    kind = str(leaf.dtype).removeprefix("torch.")
    count = leaf.numel() if hasattr(leaf, "numel") else leaf.size
    return int(count) * _FLOAT_BYTES.get(kind, 4)


def payload_bytes(payload: Tree) -> int:
    """Bytes of one payload: the sum over its leaves."""
    return sum(leaf_bytes(leaf) for _, leaf in tree.leaves(payload))


def sparse_bytes(leaf: Tensor) -> int:
    """Bytes of a tensor of which only what is not zero is sent, each entry as its value and its index."""
    return PAIR_BYTES * int(torch.count_nonzero(leaf))


def message_bytes(message: Mapping[str, Tree], charge: Charge | None = None) -> Counter[str]:
    """Bytes of a message by payload name.

    Args:
        message: {payload name: tree}.
        charge: what a payload of this name costs; by default every number in it.
    """
    cost = charge or (lambda _, payload: payload_bytes(payload))
    return Counter({name: cost(name, payload) for name, payload in message.items()})


def make_traffic(down: Mapping[str, int], up: Mapping[str, int]) -> Traffic:
    """A round's traffic from the bytes by payload in each direction.

    `by_payload` adds both directions of a payload, so that its values sum to `down + up`.
    """
    both = Counter(down) + Counter(up)
    return Traffic(sum(down.values()), sum(up.values()), dict(both))
