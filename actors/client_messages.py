"""Client messages: the instructions that each client receives besides the broadcast, on their way to actors.

Several clients may receive the same tensors, such as one model of an ensemble. These tensors are put into the
object store once, and each message refers to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import ray
import torch

from fedsim.base import tree
from fedsim.base.tree import Tree


@dataclass(frozen=True)
class SharedMessage:
    """A reference to a tree over NumPy arrays that several clients receive."""

    reference: Any


ClientMessage: TypeAlias = Tree | SharedMessage
"""A tree over NumPy arrays, or a reference to one."""


def pack_client_messages(instructions: Mapping[int, Tree]) -> dict[int, ClientMessage]:
    """Turn the instructions of each client into messages; put a shared tree into the object store once.

    Two trees are the same if they hold the same tensor objects; equal values are not enough.
    """
    marks = {client: _identify_tensors(value) for client, value in instructions.items()}
    receivers = Counter(marks.values())
    sent = dict[Hashable, ClientMessage]()
    written = dict[int, ClientMessage]()
    for client, mark in marks.items():
        if mark not in sent:
            plain = tree.to_numpy(instructions[client])
            sent[mark] = SharedMessage(ray.put(plain)) if mark and receivers[mark] > 1 else plain
        written[client] = sent[mark]
    return written


def unpack_client_messages(
    messages: Mapping[int, ClientMessage], device: torch.device | None
) -> dict[int, Tree]:
    """Return the messages as tensors on the device; load each shared message once."""
    shared: dict[Any, Tree] = {}
    found: dict[int, Tree] = {}
    for client, message in messages.items():
        if not isinstance(message, SharedMessage):
            found[client] = tree.from_numpy(message, device)
            continue
        if message.reference not in shared:
            shared[message.reference] = tree.from_numpy(ray.get(message.reference), device)
        found[client] = shared[message.reference]
    return found


def _identify_tensors(value: Tree) -> tuple[Any, ...]:
    """Return a key that is equal for two trees with the same tensors in the same places."""
    return tuple(
        (key, _identify_tensors(leaf) if isinstance(leaf, Mapping) else id(leaf))
        for key, leaf in value.items()
    )
