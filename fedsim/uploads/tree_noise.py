"""Tree aggregation: noise on the running sum of all rounds, instead of on each round (DP-FTRL).

A node of level l has the sum of 2^l rounds in a row, with noise of its own. The running sum up to round t is
the sum of the nodes in the binary expansion of t: up to round 6, the node of rounds 1 to 4 and the node of
rounds 5 and 6. So it has at most log2(t) + 1 noises, and t rounds with noise of their own would have t.

Dwork et al., STOC 2010; Chan et al., TISSEC 2011; DP-FTRL: Kairouz et al., ICML 2021, arXiv:2103.00039.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng


def list_nodes(rounds: int) -> list[tuple[int, int]]:
    """Return the nodes (level, index) whose sum is that of the first rounds, the largest one first.

    Node (l, i) has the rounds i 2^l + 1 to (i + 1) 2^l.
    """
    levels = [level for level in range(rounds.bit_length()) if rounds >> level & 1]
    return [(level, (rounds >> level) - 1) for level in reversed(levels)]


def draw_round_noise(
    seed: int, number: int, size: int, tree_rounds: int | None = None
) -> NDArray[np.float64]:
    """Return what a round adds to the noise of the running sum, in standard deviations of a node.

    This is the sum of the nodes up to this round, minus the sum of those up to the round before. Every node
    has a random stream of its own, so that two rounds with the same node have the same noise.

    Args:
        seed: of the run.
        number: of the round, from 0.
        size: length of the vector.
        tree_rounds: after so many rounds another tree begins, on top of the sum so far; None for one tree.
    """
    tree, place = divmod(number, tree_rounds) if tree_rounds else (0, number)
    before, after = set(list_nodes(place)), set(list_nodes(place + 1))
    noise = np.zeros(size)
    for signed, nodes in ((1.0, after - before), (-1.0, before - after)):
        for node in sorted(nodes):
            noise += signed * rng.stream(seed, "privacy tree", tree, *node).standard_normal(size)
    return noise


@lru_cache(maxsize=4096)
def count_node_releases(rounds: int, period: int, tree_rounds: int | None = None) -> int:
    """Return the squared sensitivity of all nodes of these rounds, for vectors of norm at most 1.

    A client that is k times in the rounds of a node moves the node by up to k. The nodes together are one
    Gaussian mechanism, whose squared sensitivity is the sum of k^2 over the nodes (Kairouz et al., appendix
    D.2): as many as this number of releases of a single vector. Nodes that the rounds do not complete are
    never used.

    Args:
        rounds: number of rounds so far.
        period: a client takes part in one of so many rounds in a row, always at the same distance.
        tree_rounds: as in `draw_round_noise`.

    Returns:
        The number for the client for which it is the largest.
    """
    if not rounds:
        return 0
    every = np.arange(rounds)
    tree, place = np.divmod(every, tree_rounds or rounds)
    length = min(rounds, tree_rounds or rounds)
    ends = np.minimum(length, rounds - tree * length)
    squares = np.zeros(min(rounds, period), dtype=np.int64)
    for level in range(length.bit_length()):
        node = place >> level
        complete = ((node + 1) << level) <= ends
        # One key for each client, tree and node: the first number is the client's place in the period.
        keys = ((every % period) * rounds + tree) * rounds + node
        found, visits = np.unique(keys[complete], return_counts=True)
        np.add.at(squares, found // rounds**2, visits**2)
    return int(squares.max())
