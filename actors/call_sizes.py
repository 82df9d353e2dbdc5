"""The sizes of calls to client actors: the blocks of a span, and the clients of a survey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsim.base import wire
from fedsim.base.tree import Tree
from fedsim.core import Context
from fedsim.engine.blocks import Block

SPAN_MEMORY_BYTES = 256 << 20
"""Bytes that the client states of one span may take in an actor, or on its share of a GPU; an estimate."""

MAX_SURVEYED_PER_CALL = 1000
"""Clients in one call of a survey: a dead actor loses the work of at most so many clients."""


def model_bytes(ctx: Context) -> int:
    """Return the bytes of the largest architecture's parameters."""
    return wire.NUMBER_BYTES * max(net.count_parameters() for net in ctx.nets)


def max_blocks_per_span(
    blocks: Sequence[Block], broadcasts: Mapping[str, Mapping[str, Tree]], model: int = 0
) -> int:
    """Return how many blocks a span may hold if clients have states: an actor holds all states of a span.

    A client state is about as large as the broadcast, or as the model (`model` bytes) if that is larger. The
    old and the new states count.
    """
    received = max(sum(wire.message_bytes(message).values()) for message in broadcasts.values())
    clients = SPAN_MEMORY_BYTES // max(1, 2 * received, 2 * model)
    return max(1, clients // max(map(len, blocks), default=1))


def count_clients_per_call(clients: int, actors: int) -> int:
    """Return how many clients one call of a survey asks; the answers do not depend on this number."""
    return min(MAX_SURVEYED_PER_CALL, max(1, -(-clients // (4 * actors))))
