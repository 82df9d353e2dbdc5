"""What a round costs: the work of a client, the fit, who trains whom; and the memory of a process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedsim.clients.sampling import draw_batches
from fedsim.core import LocalTraining
from fedsim.engine.cost_model import Costs, dealt, fit, together
from fedsim.training.work import Work, client_work


@pytest.mark.parametrize("num_examples", [0, 1, 9, 10, 11, 25])
@pytest.mark.parametrize(
    "local", [LocalTraining(epochs=3, batch_size=10), LocalTraining(steps=7, batch_size=10)]
)
def test_a_clients_work_is_what_it_draws(num_examples: int, local: LocalTraining) -> None:
    steps = local.steps_for(num_examples)
    drawn = [
        len(rows) for rows in draw_batches(np.random.default_rng(0), num_examples, steps, local.batch_size)
    ]
    assert client_work(local, num_examples) == (1, len(drawn), sum(drawn))


def test_four_shapes_of_rounds_tell_the_costs_apart() -> None:
    true = Costs(overhead=0.01, client=0.002, step=0.001, example=0.0001)
    shapes = [Work(1, 1, 10), Work(1, 30, 300), Work(1, 30, 150), Work(12, 12, 120)]
    found = fit([(work, true.overhead + true.of(work)) for work in shapes])
    assert (found.overhead, found.client, found.step, found.example) == pytest.approx(
        (true.overhead, true.client, true.step, true.example)
    )


def test_no_cost_is_negative_whatever_the_noise() -> None:
    found = fit([(Work(1, 1, 10), 0.02), (Work(1, 30, 300), 0.03), (Work(5, 5, 50), 0.01)])
    assert min(found.overhead, found.client, found.step, found.example) >= 0


def test_work_adds_up() -> None:
    assert together([Work(1, 2, 3), Work(1, 20, 30)]) == Work(2, 22, 33)
    assert together([]) == Work(0, 0, 0)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_client_is_dealt_once_and_evenly(workers: int) -> None:
    sizes = {client: 10 + client % 7 for client in range(40)}
    hands = dealt(range(40), sizes.__getitem__, sizes.__getitem__, workers)
    assert sorted(client for hand in hands for client in hand) == list(range(40))
    shares = [sum(sizes[client] for client in hand) for hand in hands]
    assert max(shares) < 1.4 * sum(sizes.values()) / workers


def test_a_large_client_is_what_all_wait_for() -> None:
    sizes = {0: 1000} | dict.fromkeys(range(1, 9), 10)
    hands = dealt(range(9), sizes.__getitem__, sizes.__getitem__, 3)
    assert [0] in hands


def test_the_peak_of_memory_is_seen_after_it_has_gone() -> None:
    program = """
from fedsim.memory import private_peak
before = private_peak()
block = bytearray(80_000_000)
del block
print(private_peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 70e6 < int(done.stdout) < 100e6
