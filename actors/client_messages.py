"""Letters: what clients receive besides the broadcast, on its way to their actors.

Where several clients receive the same tensors, such as one of an ensemble's models or a lesson for everybody,
these lie in the object store once, and no message holds a copy for every client.
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
    """A tree over NumPy arrays that several clients receive, as a reference to it."""

    reference: Any


ClientMessage: TypeAlias = Tree | SharedMessage
"""A tree over NumPy arrays, or where it lies."""


def pack_client_messages(instructions: Mapping[int, Tree]) -> dict[int, ClientMessage]:
    """The instructions of each client, ready to be sent: what several of them receive is put away once.

    Two trees are the same where they have the same tensors, not where these have the same values.
    """
    marks = {client: _identify_tensors(value) for client, value in instructions.items()}
    receivers, sent, written = (
        Counter(marks.values()),
        dict[Hashable, ClientMessage](),
        dict[int, ClientMessage](),
    )
    for client, mark in marks.items():
        if mark not in sent:
            plain = tree.to_numpy(instructions[client])
            sent[mark] = SharedMessage(ray.put(plain)) if mark and receivers[mark] > 1 else plain
        written[client] = sent[mark]
    return written


def unpack_client_messages(
    letters: Mapping[int, ClientMessage], device: torch.device | None
) -> dict[int, Tree]:
    """The letters as tensors where the clients train; those that are shared, once for all of them."""
    shared: dict[Any, Tree] = {}
    found: dict[int, Tree] = {}
    for client, letter in letters.items():
        if not isinstance(letter, SharedMessage):
            found[client] = tree.from_numpy(letter, device)
            continue
        if letter.reference not in shared:
            shared[letter.reference] = tree.from_numpy(ray.get(letter.reference), device)
        found[client] = shared[letter.reference]
    return found


def _identify_tensors(value: Tree) -> tuple[Any, ...]:
    """What two trees have in common that have the same tensors in the same places."""
    return tuple(
        (key, _identify_tensors(leaf) if isinstance(leaf, Mapping) else id(leaf))
        for key, leaf in value.items()
    )
