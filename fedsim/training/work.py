"""Work: how many clients, local steps and examples a round has."""

from __future__ import annotations

from typing import NamedTuple

from fedsim.core.local_training import LocalTraining


class Work(NamedTuple):
    """What was done in a round.

    Attributes:
        clients: how many came.
        steps: local steps that they made.
        examples: examples in the batches of these steps.
    """

    clients: int
    steps: int
    examples: int


def client_work(local: LocalTraining, num_examples: int) -> Work:
    """A round's work of one client with this many examples."""
    steps = local.steps_for(num_examples)
    if not steps:
        return Work(1, 0, 0)
    passes, rest = divmod(steps, -(-num_examples // local.batch_size))
    return Work(1, steps, passes * num_examples + min(rest * local.batch_size, num_examples))
