"""Random draws among a client's examples: the batches of local steps, and the held-out examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from fedsim.base.shares import floor_share
from fedsim.core import Pacing

Positions: TypeAlias = np.ndarray[Any, Any]


def draw_batches(
    rng: np.random.Generator, num_examples: int, steps: int, batch_size: int, pacing: Pacing | None = None
) -> Iterator[Positions]:
    """Draw the batch of each local step, as positions among the client's examples.

    Without pacing, every epoch is a new shuffle cut into batches; the last batch of an epoch may be smaller.
    With pacing, a step that may draw only some examples draws its batch uniformly from them. A step that may
    draw all examples takes the next batch of the epochs. If all steps may draw all examples, the batches are
    exactly those without pacing. With `Pacing.sizes`, every step draws so many examples uniformly.

    Args:
        rng: random stream of the shuffles.
        num_examples: n, at least 1 unless `steps` is 0.
        steps: number of local steps.
        batch_size: the largest number of examples in a batch.
        pacing: the examples that each step may draw; None for all.

    Yields:
        int64 arrays of between 1 and `batch_size` positions, or of `pacing.sizes` positions.
    """
    usual = _epochs(rng, num_examples, steps, batch_size)
    for step in range(steps):
        limit = num_examples if pacing is None else int(pacing.limits[step])
        sizes = None if pacing is None else pacing.sizes
        if pacing is None or (sizes is None and limit == num_examples):
            yield next(usual)
        else:
            order = rng.permutation(num_examples) if pacing.order is None else pacing.order
            size = min(batch_size, limit) if sizes is None else int(sizes[step])
            yield order[rng.choice(limit, size, replace=False)]


def count_apart(num_examples: int, share: float) -> int:
    """Return the number of held-out examples: `share` (0 <= share < 1) of all examples, rounded down."""
    return floor_share(share, num_examples)


def draw_apart(rng: np.random.Generator, num_examples: int, share: float) -> Positions:
    """Draw the held-out examples at random.

    Taking every tenth example instead would be wrong if the order has a meaning: recordings are sorted by
    word, and every tenth may be of one class.

    Args:
        rng: the random stream; the same stream gives the same examples.
        num_examples: n, the number of the client's examples.
        share: the share to hold out, see `count_apart`.

    Returns:
        bool `[num_examples]`, True for a held-out example.
    """
    apart: Positions = np.zeros(num_examples, bool)
    apart[rng.permutation(num_examples)[: count_apart(num_examples, share)]] = True
    return apart


def _epochs(rng: np.random.Generator, num_examples: int, steps: int, batch_size: int) -> Iterator[Positions]:
    made = 0
    while made < steps:
        order = rng.permutation(num_examples)
        for start in range(0, num_examples, batch_size):
            if made == steps:
                return
            yield order[start : start + batch_size]
            made += 1
