"""Blocks and spans: cut a round's work for the workers, and sum the results in a fixed order.

A cohort is cut into *blocks*. The cut depends only on the cohort, the architectures and each client's work.
The blocks are the leaves of a binary tree; its shape depends only on the number of blocks. Every sum of a
round follows this tree.

A *span* is a sequence of consecutive blocks, mostly all blocks below one node. One worker trains a span and
returns the sums of the nodes that lie wholly in it.

The cut into spans depends on the number of workers: few messages, no idle worker. The result does not depend
on it, because the same additions are made in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

MOST_BLOCKS = 1024
"""Largest number of blocks per architecture; a sum from left to right then holds at most ten partial sums."""

Block: TypeAlias = tuple[int, ...]
"""Clients in one unit of work, all of one architecture and with similar amounts of work."""


class Node(NamedTuple):
    """A node of the tree: the blocks `place * 2^level` up to `(place + 1) * 2^level`, as far as they exist.

    Attributes:
        level: height above the blocks.
        place: index among the nodes of this level, from 0.
    """

    level: int
    place: int


def cut_into_blocks(
    cohort: Sequence[int],
    steps: Callable[[int], int],
    num_models: int = 1,
    stack_size: Callable[[int], int] = lambda model: 1,
) -> list[Block]:
    """Cut a cohort into blocks.

    Args:
        cohort: the round's clients.
        steps: a function that returns the local steps of a client.
        num_models: client k runs architecture `k % num_models`.
        stack_size: a function from architecture to stack size; a block holds one stack or several.

    Returns:
        The blocks in order of summation: by architecture, and within it the most work first.
    """
    blocks: list[Block] = []
    for model in range(num_models):
        mine = [client for client in cohort if client % num_models == model]
        work = {client: steps(client) for client in mine}
        mine.sort(key=lambda client: -work[client])
        size = _block_size(len(mine), stack_size(model))
        blocks += [tuple(mine[start : start + size]) for start in range(0, len(mine), size)]
    return blocks


def _block_size(clients: int, stack_size: int) -> int:
    """Return the number of clients in a block: one stack, or several stacks in a very large cohort."""
    stacks = max(1, -(-clients // stack_size))
    return max(1, -(-clients // stacks) * -(-stacks // MOST_BLOCKS))


def count_blocks(cohort: Iterable[int], stack_sizes: Sequence[int]) -> int:
    """Count the blocks of a cohort: the largest number of workers that it can keep busy.

    Args:
        cohort: the round's clients.
        stack_sizes: the stack size of each architecture.
    """
    came = Counter(client % len(stack_sizes) for client in cohort)
    return sum(-(-count // _block_size(count, stack_sizes[model])) for model, count in came.items())


EVEN_SHARE = 0.95
"""Share of the remaining work that is given out evenly at a time; the rest balances slower workers."""

SPANS_PER_WORKER = 16
"""Smallest span: a worker's even share divided by this number, so that there are few messages."""


def cut_into_spans(work: Sequence[int], workers: int, most: int | None = None) -> Iterator[range]:
    """Cut blocks into spans: a large one for each worker, then smaller ones to balance the load.

    Every span is one whole subtree, so its worker returns one sum.

    Args:
        work: the work of each block, in order, such as its local steps.
        workers: number of workers.
        most: largest number of blocks in a span, at least 1; None for any number.

    Yields:
        Consecutive ranges that together cover every block once.
    """
    upto = [0, *accumulate(work)]
    start, finest = 0, upto[-1] / (workers * SPANS_PER_WORKER)
    while start < len(work):
        share = max(EVEN_SHARE * (upto[-1] - upto[start]) / workers, finest)
        for _ in range(workers):
            if start == len(work):
                return
            stop = _subtree_end(upto, start, share, most or len(work))
            yield range(start, stop)
            start = stop


def cut_evenly(blocks: int, workers: int) -> Iterator[range]:
    """Cut blocks into one span per worker, for work that costs less than its messages.

    The ends of the spans cut through few nodes of the tree, so each worker returns a few sums.

    Args:
        blocks: number of blocks.
        workers: number of workers.

    Yields:
        Consecutive ranges that together cover every block once; at most `workers`.
    """
    grain = 1 << max(0, (blocks // workers).bit_length() - 3)
    ends = [round(blocks * part / workers / grain) * grain for part in range(1, workers)]
    for start, stop in pairwise([0, *ends, blocks]):
        if stop > start:
            yield range(start, stop)


def _subtree_end(upto: Sequence[int], start: int, share: float, most: int) -> int:
    """Return the end of the largest subtree from `start` with at most this work and this many blocks."""
    size, last = 1, len(upto) - 1
    while start % (2 * size) == 0 and start + size < last and 2 * size <= most:
        wider = min(start + 2 * size, last)
        if upto[wider] - upto[start] > share:
            break
        size *= 2
    return min(start + size, last)


class TreeSum:
    """A sum along the tree, given its nodes in any order.

    Args:
        add: adds two values, the left one first; None is an empty part, for which it returns the other.
    """

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.add = add
        self._values: dict[Node, Any] = {}

    def add_node(self, node: Node, value: Any) -> None:
        """Take the value of a node; add siblings as soon as both are there."""
        while (sibling := Node(node.level, node.place ^ 1)) in self._values:
            other = self._values.pop(sibling)
            value = self.add(other, value) if node.place % 2 else self.add(value, other)
            node = Node(node.level + 1, node.place // 2)
        self._values[node] = value

    @property
    def nodes(self) -> list[tuple[Node, Any]]:
        """Return (node, value) pairs that have no sibling to be added to yet, from left to right."""
        return sorted(self._values.items(), key=lambda entry: entry[0].place << entry[0].level)

    def total(self) -> Any:
        """Return the sum of all nodes; at the right edge, a node without a sibling is its parent."""
        if not self._values:
            return None
        *rest, (_, value) = self.nodes
        for _, left in reversed(rest):
            value = self.add(left, value)
        return value
