"""The work of a client in a round."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.clients.sampling import draw_batches
from fedsim.core import LocalTraining
from fedsim.training.work import client_work


@pytest.mark.parametrize("num_examples", [0, 1, 9, 10, 11, 25])
@pytest.mark.parametrize(
    "local", [LocalTraining(epochs=3, batch_size=10), LocalTraining(steps=7, batch_size=10)]
)
def test_a_clients_work_is_what_it_draws(num_examples: int, local: LocalTraining) -> None:
    steps = local.steps_for(num_examples)
    drawn = [
        len(rows) for rows in draw_batches(np.random.default_rng(0), num_examples, steps, local.batch_size)
    ]
    assert client_work(local, num_examples) == (len(drawn), sum(drawn))
