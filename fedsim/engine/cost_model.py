"""What a round costs: fitted to short measurements, and dealt to workers as a pool deals it.

A client's cost is taken to be linear in what it does: so much for coming at all, for each local step, and
for each example in its batches; a round costs so much besides, whoever comes. Four small rounds of different
shapes tell these four apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.engine.blocks import cut_into_blocks, cut_into_spans, single_client_stack
from fedsim.training.work import Work


def together(parts: Iterable[Work]) -> Work:
    """The work of several, one after another."""
    return Work(*np.sum([Work(0, 0, 0), *parts], axis=0).tolist())


@dataclass(frozen=True)
class Costs:
    """Seconds of one worker.

    Attributes:
        overhead: of a round, whoever comes.
        client, step, example: of each of these.
    """

    overhead: float = 0.0
    client: float = 0.0
    step: float = 0.0
    example: float = 0.0

    def of(self, work: Work) -> float:
        """Seconds of this work, without the round's own."""
        return self.client * work.clients + self.step * work.steps + self.example * work.examples


def fit(observations: Sequence[tuple[Work, float]]) -> Costs:
    """The costs that explain what was measured best, none of them negative.

    Args:
        observations: the work of the busiest worker of a round, and the seconds that the round took.
            Errors count relatively, so that a short round says as much as a long one.
    """
    # Loading it takes longer than most of what imports this module needs.
    from scipy.optimize import nnls

    rows = np.array([[1.0, *work] for work, _ in observations])
    seconds = np.array([max(taken, 1e-9) for _, taken in observations])
    found, _ = nnls(rows / seconds[:, None], np.ones(len(seconds)))
    return Costs(*found.tolist())


def dealt(
    cohort: Sequence[int],
    steps: Callable[[int], int],
    cost: Callable[[int], float],
    workers: int,
    num_models: int = 1,
    stack_size: Callable[[int], int] = single_client_stack,
) -> list[list[int]]:
    """Who trains whom: the spans of a round, each given to the worker that is free first.

    Args:
        cohort: the round's clients.
        steps: local steps of a client, by which a pool cuts the spans.
        cost: seconds of a client, by which a worker becomes free.
        workers: how many there are.
        num_models: client k runs architecture `k % num_models`.
        stack_size: how many clients of an architecture train at once.

    Returns:
        The clients of each worker.
    """
    blocks = cut_into_blocks(cohort, steps, num_models, stack_size)
    hands: list[list[int]] = [[] for _ in range(workers)]
    busy = [0.0] * workers
    for span in cut_into_spans([sum(steps(client) for client in block) for block in blocks], workers):
        free = min(range(workers), key=busy.__getitem__)
        taken = [client for block in blocks[span.start : span.stop] for client in block]
        hands[free] += taken
        busy[free] += sum(cost(client) for client in taken)
    return hands
