"""Dirichlet by class: each class is shared out among the clients in proportions drawn from Dir(beta).

The usual form (NIID-Bench and its descendants): a client that already has its fair share gets nothing more,
and the whole draw is repeated until every client has its minimum. For a small beta that repetition never ends
(100 clients at 0.05), so here it is capped, and the best draw is then repaired.
"""

from __future__ import annotations

from math import floor
from typing import Annotated

import numpy as np

from fedsim.base.parameters import Positive, Range, make_spec_error
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions.repair import fill_small_clients
from fedsim.data.partitions.stock import PartitionFigures, PartitionInput

_TRIES = 200
_CHECKED_DRAWS = 3
_HOPELESS = 20.0


def dirichlet(
    stock: PartitionInput,
    *,
    beta: Positive = 0.5,
    min_size: Annotated[int, Range(0)] | None = None,
    share: Annotated[float, Range(above=0, maximum=1)] = 1.0,
) -> Partition:
    """Shares out each class in Dirichlet proportions.

    Args:
        stock: the examples.
        beta: concentration; small is skewed (0.05), large is even (100).
        min_size: examples that every client has at least; 10 when not given, less where the examples are few.
        share: of each class that is shared out at all; the rest belongs to nobody.

    Raises:
        SpecError: there are not enough examples for the minimum, or for the clients.
    """
    class_sizes = (stock.class_sizes() * share).astype(np.int64)
    _enough(stock.to_figures(), share, int(class_sizes.sum()))
    return share_out_examples(stock, class_sizes, beta, min_size, "dirichlet")


def check_dirichlet(supply: PartitionFigures, *, share: float, min_size: int | None, **_: object) -> None:
    """Refuse what `dirichlet` cannot do by these figures.

    Raises:
        SpecError: as `dirichlet`.
    """
    # The most that there can be: of each class the share is rounded down, and so is not more than of all.
    total = floor(supply.examples * share + 1e-6)
    _enough(supply, share, total)
    supply.check_min_size(min_size, total)


def _enough(supply: PartitionFigures, share: float, total: int) -> None:
    if total < supply.num_clients:
        message = f"leaves {total:,}, which are fewer examples than the {supply.num_clients} clients"
        raise make_spec_error("share", share, message, "raise it, or have fewer clients")


def share_out_examples(
    stock: PartitionInput, class_sizes: Indices, beta: float, min_size: int | None, kind: str
) -> Partition:
    """Draws counts for so many examples of each class, repairs them, and deals out the examples.

    Args:
        stock: the examples.
        class_sizes: int64 [C], how many of each class to share out.
        beta: concentration.
        min_size: as asked for.
        kind: names the random stream.
    """
    total = int(class_sizes.sum())
    minimum = stock.effective_min_size(min_size, total)
    generator = stock.generator(kind)
    counts = _best_draw(class_sizes, stock.num_clients, beta, minimum, generator)
    counts, notes = fill_small_clients(counts, minimum)
    return partition_from_owners(deal_examples(stock.labels, counts, generator), stock.num_clients, notes)


def _best_draw(
    class_sizes: Indices, num_clients: int, beta: float, minimum: int, generator: np.random.Generator
) -> Indices:
    """The first draw in which no client is short, or the one with the fewest short clients of those tried.

    The number of short clients in a draw is roughly Poisson, so after a few draws with dozens of them further
    ones are a waste of time.
    """
    best, fewest, seen = np.empty(0, np.int64), num_clients + 1, 0
    for attempt in range(1, _TRIES + 1):
        counts = draw_counts(class_sizes, num_clients, beta, generator)
        short = int((counts.sum(axis=1) < minimum).sum())
        if short < fewest:
            best, fewest = counts, short
        seen += short
        if short == 0 or (attempt >= _CHECKED_DRAWS and seen / attempt > _HOPELESS):
            break
    return best


def draw_counts(
    class_sizes: Indices, num_clients: int, beta: float, generator: np.random.Generator
) -> Indices:
    """One draw.

    Args:
        class_sizes: int64 [C].
        num_clients: N.
        beta: concentration.
        generator: the source of randomness.

    Returns:
        int64 [N, C] of how many examples of each class each client gets; columns sum to the class sizes.
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
    """Proportions over the clients that are still open; even ones where the draw left those nothing."""
    kept = proportions * open_to
    if kept.sum() <= 0:
        kept = open_to.astype(np.float64) if open_to.any() else np.ones(len(open_to))
    return np.asarray(kept / kept.sum())


def _cut_by_proportions(size: int, proportions: Array) -> Indices:
    """Cuts `size` examples at the floor of the cumulated proportions, int64 [N]."""
    edges = np.floor(np.cumsum(proportions) * size).astype(np.int64)
    # Rounding may leave the last edge one short of the class.
    edges[int(np.flatnonzero(proportions)[-1]) :] = size
    return np.asarray(np.diff(np.minimum(edges, size), prepend=0), dtype=np.int64)
