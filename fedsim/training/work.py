"""Work: the numbers of local steps and examples of a client in a round."""

from __future__ import annotations

from typing import NamedTuple

from fedsim.core.local_training import LocalTraining


class Work(NamedTuple):
    """The local training of one client in a round.

    Attributes:
        steps: number of local steps.
        examples: number of examples in the batches of these steps.
    """

    steps: int
    examples: int


def client_work(local: LocalTraining, num_examples: int) -> Work:
    """Return the work of one client with this many examples in a round."""
    steps = local.steps_for(num_examples)
    if not steps:
        return Work(0, 0)
    passes, rest = divmod(steps, -(-num_examples // local.batch_size))
    return Work(steps, passes * num_examples + min(rest * local.batch_size, num_examples))
