"""A client whose model has diverged says nothing that counts, in every method that exchanges predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import AcePFL, FedAD, FedDF, FedKD, KTpFL
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining
from fedsim.core.capabilities import CohortSelection
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation

SIZES = [21, 34, 12, 40]
ONE_SHOT = {"local_rounds": 1, "server_epochs": 2, "server_batch_size": 20}

METHODS = [
    AcePFL(clusters=2, top_k=2, unsent="zero"),
    AcePFL(clustering="none", unsent="even"),
    FedDF(steps=6, batch_size=12, check_every=3),
    FedKD(**ONE_SHOT),
    FedAD(**ONE_SHOT, lambda_att=0.0),
    KTpFL(public_size=20),
]


def diverging(clients: Sequence[int]) -> Population:
    """Four clients of two architectures; the examples of these are no numbers, and so become their models."""
    population = federation(SIZES, rounds=3, local=LocalTraining(epochs=1, batch_size=8, lr=0.05))
    data = population.dataset
    x = data.train.x.copy()
    for client in clients:
        x[population.partition.client_positions(client)] = np.nan
    shape = {"input_shape": data.input_shape, "num_classes": data.num_classes}
    nets = tuple(make_net(name, **shape) for name in ("mlp", "logistic"))
    return replace(population, dataset=replace(data, train=replace(data.train, x=x)), nets=nets)


def run(method: Algorithm, population: Population, pool: Any = SerialPool) -> tuple[list[RoundResult], Any]:
    made = pool(method, population)
    return list(simulate(method, population, made, personal="never")), made.client_states()


def numbers(value: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in tree.leaves(value)]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'unsent', '')}")
def test_the_others_go_on_as_if_it_had_not_come(method: Algorithm) -> None:
    results, kept = run(method, diverging([3]))
    choosing = {"select_cohort": lambda self, ctx, state, rng: [0, 1, 2]}
    three = type("Three", (type(method), CohortSelection), choosing)
    plain, expected = run(three(**vars(method)), diverging([]))
    assert set(expected) <= {0, 1, 2}
    for client, memory in expected.items():
        for found, mine in zip(numbers(kept[client]), numbers(memory), strict=True):
            assert found.isfinite().all()
            torch.testing.assert_close(found, mine, rtol=1e-4, atol=1e-6)
    if isinstance(method, FedDF):
        # The mean of its own architecture is FedAvg's, so that the next round has only the other one's.
        torch.testing.assert_close(results[0].state.said, plain[0].state.said)
        for key, value in plain[0].state.params["0"].items():
            torch.testing.assert_close(results[0].state.params["0"][key], value)
        assert all(value.isfinite().all() for value in results[-1].state.params["0"].values())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'unsent', '')}")
def test_where_nobody_says_numbers_nobody_learns_from_them(method: Algorithm) -> None:
    last = run(method, diverging([0, 1, 2, 3]))[0][-1]
    if isinstance(method, AcePFL):
        assert last.state.predictions is None
    elif isinstance(method, FedDF | KTpFL):
        assert last.state.said is None
    else:
        assert last.state.lesson == {}


def test_it_is_left_out_where_clients_train_at_once() -> None:
    method = AcePFL(clusters=2)
    pools = (SerialPool, partial(StackedPool, stack_size=4))
    one, many = (run(method, diverging([3]), pool)[0][-1].state.predictions for pool in pools)
    assert many.isfinite().all()
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-6)
