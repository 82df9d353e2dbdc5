"""Which examples each local step sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from fedsim.core import Pacing

Positions: TypeAlias = np.ndarray[Any, Any]


def draw_batches(
    rng: np.random.Generator, num_examples: int, steps: int, batch_size: int, pacing: Pacing | None = None
) -> Iterator[Positions]:
    """The examples of each local step, as positions among the client's own.

    Without pacing this is the usual loop: every epoch is a fresh shuffle cut into batches, the last of
    which may be smaller. With pacing, a step to which not all examples are open draws its batch uniformly
    from those that are; a step to which all are open takes its turn in the usual loop, so when every example
    is open from the start, it is the usual loop, draw for draw.

    Args:
        rng: the shuffles' stream.
        num_examples: n, at least 1 unless there are no steps.
        steps: how many steps to draw for.
        batch_size: the most examples of a step.
        pacing: which examples a step may draw; None for all.

    Yields:
        int64 arrays of between 1 and `batch_size` positions.
    """
    usual = _epochs(rng, num_examples, steps, batch_size)
    for step in range(steps):
        limit = num_examples if pacing is None else int(pacing.limits[step])
        if pacing is None or limit == num_examples:
            yield next(usual)
        else:
            order = rng.permutation(num_examples) if pacing.order is None else pacing.order
            yield order[rng.choice(limit, min(batch_size, limit), replace=False)]


def count_apart(num_examples: int, share: float) -> int:
    """How many of so many examples are kept apart: the share, at least 0 and below 1, rounded down."""
    return int(num_examples * share + 1e-9)


def draw_apart(rng: np.random.Generator, num_examples: int, share: float) -> Positions:
    """Which of so many examples are kept apart, drawn whatever their order, bool `[num_examples]`.

    Every so many-th would do only where the order says nothing: recordings come word by word, and so every
    tenth may be of one class.

    Args:
        rng: to draw from; the same stream keeps the same apart.
        num_examples: n.
        share: as in `count_apart`.
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
