"""Blocks: the unit of dispatch, of stacking and of summation.

The cut looks at the cohort, the architectures and the amounts of work, and at nothing else: not at how many
workers there are, nor which are free. Partial sums are taken inside a block and added in block order, so
the result of a round is the same bit for bit wherever its blocks ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

MOST_CLIENTS = 32
"""A block's partial sum is as large as one model, so larger blocks mean less to ship and to add."""

SHARE = 8
"""A block takes 1/SHARE of the work that is left: long ones first, short ones to fill the gaps at the end."""


class Block(NamedTuple):
    """Clients that run together, all of one architecture.

    Attributes:
        number: its place in the order of summation.
        clients: their numbers, the one with the most steps first.
    """

    number: int
    clients: tuple[int, ...]


def cut(cohort: Sequence[int], steps: Callable[[int], int], num_models: int = 1) -> list[Block]:
    """Cut a cohort into blocks.

    Args:
        cohort: the round's clients.
        steps: local steps of a client.
        num_models: client k runs architecture `k % num_models`.

    Returns:
        The blocks in order of summation, which is also the order of dispatch: the most work first.
    """
    blocks: list[Block] = []
    for model in range(num_models):
        mine = [client for client in cohort if client % num_models == model]
        work = {client: steps(client) for client in mine}
        mine.sort(key=lambda client: -work[client])
        left, group = sum(work.values()), list[int]()
        target, taken = left / SHARE, 0
        for client in mine:
            group.append(client)
            taken += work[client]
            if taken >= target or len(group) == MOST_CLIENTS:
                blocks.append(Block(len(blocks), tuple(group)))
                left, group = left - taken, []
                target, taken = left / SHARE, 0
        if group:
            blocks.append(Block(len(blocks), tuple(group)))
    return blocks
