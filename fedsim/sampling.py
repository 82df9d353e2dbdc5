"""Which examples each local step sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from .core import Pacing

Positions: TypeAlias = np.ndarray[Any, Any]


def draws(
    rng: np.random.Generator, num_examples: int, steps: int, batch_size: int, pacing: Pacing | None = None
) -> Iterator[Positions]:
    """The examples of each local step, as positions among the client's own.

    Without pacing this is the usual loop: every epoch is a fresh shuffle cut into batches, the last of
    which may be smaller. With pacing, a step takes the next of the shuffle that are open to it, and a new
    shuffle starts when none is left; so when every example is open from the start, it is the usual loop,
    draw for draw.

    Args:
        rng: the shuffles' stream.
        num_examples: n, at least 1 unless there are no steps.
        steps: how many steps to draw for.
        batch_size: the most examples of a step.
        pacing: which examples a step may draw; None for all.

    Yields:
        int64 arrays of between 1 and `batch_size` positions.
    """
    if pacing is None:
        yield from _epochs(rng, num_examples, steps, batch_size)
        return
    rank = np.empty(num_examples, np.int64)
    rank[pacing.order] = np.arange(num_examples)
    queue = np.empty(0, np.int64)
    for step in range(steps):
        limit = pacing.limits[step]
        chosen = np.flatnonzero(rank[queue] < limit)[:batch_size]
        if not len(chosen):
            queue = rng.permutation(num_examples)
            chosen = np.flatnonzero(rank[queue] < limit)[:batch_size]
        yield queue[chosen]
        queue = np.delete(queue, chosen)


def _epochs(rng: np.random.Generator, num_examples: int, steps: int, batch_size: int) -> Iterator[Positions]:
    made = 0
    while made < steps:
        order = rng.permutation(num_examples)
        for start in range(0, num_examples, batch_size):
            if made == steps:
                return
            yield order[start : start + batch_size]
            made += 1
