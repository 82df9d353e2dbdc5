"""Blocks and spans: how a round's work is cut, dispatched and summed.

A cohort is cut into *blocks* by a rule that looks at the cohort, the architectures and the amounts of work,
and at nothing else. The blocks are the leaves of a binary tree whose shape depends only on how many there
are, and every sum of a round is taken along that tree. A *span* is a run of consecutive blocks, mostly all
those below one node; it goes to one worker, which sends back the sums of the nodes that lie wholly in it.
How the spans are cut depends on how many workers there are, so that few messages are sent and nobody waits;
what comes out does not, because the additions are the same ones whoever makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

MOST_BLOCKS = 1024
"""A cohort is cut into at most so many blocks per architecture: whoever adds them up holds up to ten sums."""

Block: TypeAlias = tuple[int, ...]
"""Clients that run together, all of one architecture and of similar amounts of work."""


class Node(NamedTuple):
    """A node of the tree: the blocks `place * 2^level` up to `(place + 1) * 2^level`, as far as they exist.

    Attributes:
        level: height above the blocks.
        place: where it stands among the nodes of this level.
    """

    level: int
    place: int


def single_client_stack(model: int) -> int:
    """How many clients of an architecture train at once where nobody asks for stacks."""
    return 1


def cut_into_blocks(
    cohort: Sequence[int],
    steps: Callable[[int], int],
    num_models: int = 1,
    stack_size: Callable[[int], int] = single_client_stack,
) -> list[Block]:
    """Cut a cohort into blocks.

    Args:
        cohort: the round's clients.
        steps: local steps of a client.
        num_models: client k runs architecture `k % num_models`.
        stack_size: how many clients of an architecture train at once; a block holds one stack or several.

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
    """How many of an architecture's clients make a block: a stack of them, or several of very many."""
    stacks = max(1, -(-clients // stack_size))
    return max(1, -(-clients // stacks) * -(-stacks // MOST_BLOCKS))


def count_blocks(cohort: Iterable[int], stack_sizes: Sequence[int]) -> int:
    """How many workers a cohort has something to do for: the blocks that it is cut into.

    Args:
        cohort: the round's clients.
        stack_sizes: how many clients of each architecture train at once.
    """
    came = Counter(client % len(stack_sizes) for client in cohort)
    return sum(-(-count // _block_size(count, stack_sizes[model])) for model, count in came.items())


EVEN_SHARE = 0.95
"""How much of what is left is dealt out evenly at a time; the rest makes up for workers that are slower."""

SPANS_PER_WORKER = 16
"""A span is not cut finer than this part of a worker's even share, so that messages stay few."""


def cut_into_spans(work: Sequence[int], workers: int, most: int | None = None) -> Iterator[range]:
    """Cut blocks into spans for so many workers: a large one for each, then smaller ones to fill the gaps.

    Every span is the whole of one subtree, so that it sends back one sum.

    Args:
        work: of each block, in order, such as local steps.
        workers: how many there are.
        most: blocks in a span, at least 1; None for any number.

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
    """Cut blocks into one span for each worker, for work that costs less than the messages about it.

    The spans end at places where few nodes of the tree are cut through, so each sends back a few sums.

    Args:
        blocks: how many there are.
        workers: how many there are.

    Yields:
        Consecutive ranges that together cover every block once; at most `workers`.
    """
    grain = 1 << max(0, (blocks // workers).bit_length() - 3)
    ends = [round(blocks * part / workers / grain) * grain for part in range(1, workers)]
    for start, stop in pairwise([0, *ends, blocks]):
        if stop > start:
            yield range(start, stop)


def _subtree_end(upto: Sequence[int], start: int, share: float, most: int) -> int:
    """Where the largest subtree ends that begins here and holds at most this much work and so many blocks."""
    size, last = 1, len(upto) - 1
    while start % (2 * size) == 0 and start + size < last and 2 * size <= most:
        wider = min(start + 2 * size, last)
        if upto[wider] - upto[start] > share:
            break
        size *= 2
    return min(start + size, last)


class TreeSum:
    """A sum along the tree, given its nodes from left to right.

    Args:
        add: adds two values; None is an empty part, for which it returns the other.

    Attributes:
        nodes: what could not be added yet, from left to right: (node, value).
    """

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.add = add
        self.nodes: list[tuple[Node, Any]] = []

    def add_node(self, node: Node, value: Any) -> None:
        """Take the value of the next node; siblings are added as soon as both are there."""
        while node.place % 2 and self.nodes and self.nodes[-1][0] == (node.level, node.place - 1):
            value = self.add(self.nodes.pop()[1], value)
            node = Node(node.level + 1, node.place // 2)
        self.nodes.append((node, value))

    def total(self) -> Any:
        """The sum of all nodes; at the right edge of the tree, a node without a sibling is its parent."""
        if not self.nodes:
            return None
        *rest, (_, value) = self.nodes
        for _, left in reversed(rest):
            value = self.add(left, value)
        return value
