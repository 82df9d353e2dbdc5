"""Dirichlet by class: each class is divided among the clients in proportions drawn from Dir(beta).

The usual form (NIID-Bench and its descendants): a client with its fair share gets no more, and the whole draw
is repeated until every client has its minimum. For a small beta this never ends (100 clients at 0.05).
Therefore the number of draws is limited here, and the best draw is repaired.
"""

from __future__ import annotations

from math import floor
from typing import Annotated

import numpy as np

from fedsim.base.parameters import Positive, Range, make_spec_error
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput
from fedsim.data.partitions.repair import fill_small_clients

_TRIES = 200
_CHECKED_DRAWS = 3
_HOPELESS_FACTOR = 20.0


def dirichlet(
    given: PartitionInput,
    *,
    beta: Positive = 0.5,
    min_size: Annotated[int, Range(0)] | None = None,
    share: Annotated[float, Range(above=0, maximum=1)] = 1.0,
) -> Partition:
    """Divide each class in Dirichlet proportions.

    Args:
        given: the examples.
        beta: concentration; small is skewed (0.05), large is even (100).
        min_size: least number of examples of every client; by default 10, or less if there are few examples.
        share: share of each class that is dealt; the rest belongs to no client.

    Raises:
        SpecError: if there are not enough examples for the minimum, or for the clients.

    Example:
        >>> given = PartitionInput(np.repeat([0, 1], 50), num_clients=4, num_classes=2, seed=0)
        >>> int(dirichlet(given, beta=0.5).sizes().sum())
        100
    """
    class_sizes = (given.class_sizes() * share).astype(np.int64)
    _check_enough_examples(given.to_counts(), share, int(class_sizes.sum()))
    return share_out_examples(given, class_sizes, beta, min_size, "dirichlet")


def check_dirichlet(counts: PartitionCounts, *, share: float, min_size: int | None, **_: object) -> None:
    """Raise the errors of `dirichlet` that these counts show.

    Raises:
        SpecError: as `dirichlet`.
    """
    # An upper bound: the share is rounded down for each class.
    total = floor(counts.examples * share + 1e-6)
    _check_enough_examples(counts, share, total)
    counts.check_min_size(min_size, total)


def _check_enough_examples(counts: PartitionCounts, share: float, total: int) -> None:
    if total < counts.num_clients:
        message = f"leaves {total:,} examples for {counts.num_clients} clients"
        raise make_spec_error("share", share, message, "raise it, or have fewer clients")


def share_out_examples(
    given: PartitionInput, class_sizes: Indices, beta: float, min_size: int | None, kind: str
) -> Partition:
    """Draw counts from these class sizes, repair them, and deal the examples.

    Args:
        given: the examples.
        class_sizes: int64 [C], number of examples to deal of each class.
        beta: concentration.
        min_size: as in the spec.
        kind: name of the random stream.
    """
    total = int(class_sizes.sum())
    minimum = given.effective_min_size(min_size, total)
    generator = given.generator(kind)
    counts = _best_draw(class_sizes, given.num_clients, beta, minimum, generator)
    counts, notes = fill_small_clients(counts, minimum)
    return partition_from_owners(deal_examples(given.labels, counts, generator), given.num_clients, notes)


def _best_draw(
    class_sizes: Indices, num_clients: int, beta: float, minimum: int, generator: np.random.Generator
) -> Indices:
    """The first draw without a short client, or the draw with the fewest short clients.

    The number of short clients in a draw is roughly Poisson: after a few draws with dozens of them, more
    draws are useless.
    """
    best, fewest, seen = np.empty(0, np.int64), num_clients + 1, 0
    for attempt in range(1, _TRIES + 1):
        counts = draw_counts(class_sizes, num_clients, beta, generator)
        short = int((counts.sum(axis=1) < minimum).sum())
        if short < fewest:
            best, fewest = counts, short
        seen += short
        if short == 0 or (attempt >= _CHECKED_DRAWS and seen / attempt > _HOPELESS_FACTOR):
            break
    return best


def draw_counts(
    class_sizes: Indices, num_clients: int, beta: float, generator: np.random.Generator
) -> Indices:
    """Draw the counts once.

    Args:
        class_sizes: int64 [C].
        num_clients: N.
        beta: concentration.
        generator: random generator.

    Returns:
        int64 [N, C], the number of examples of each class for each client; columns sum to the class sizes.
    """
    fair_share = class_sizes.sum() / num_clients
    counts = np.zeros((num_clients, len(class_sizes)), np.int64)
    held = np.zeros(num_clients, np.int64)
    for label, size in enumerate(class_sizes):
        proportions = generator.dirichlet(np.full(num_clients, beta))
        counts[:, label] = _cut_by_proportions(int(size), _mask_proportions(proportions, held < fair_share))
        held += counts[:, label]
    return counts


def _mask_proportions(proportions: Array, open_to: Array) -> Array:
    """Proportions over the clients that can take more; equal ones if the draw gave them nothing."""
    kept = proportions * open_to
    if kept.sum() <= 0:
        kept = open_to.astype(np.float64) if open_to.any() else np.ones(len(open_to))
    return np.asarray(kept / kept.sum())


def _cut_by_proportions(size: int, proportions: Array) -> Indices:
    """Divide `size` examples at the floor of the cumulated proportions, int64 [N]."""
    edges = np.floor(np.cumsum(proportions) * size).astype(np.int64)
    # By rounding, the last edge may be one below the class size.
    edges[int(np.flatnonzero(proportions)[-1]) :] = size
    return np.asarray(np.diff(np.minimum(edges, size), prepend=0), dtype=np.int64)
