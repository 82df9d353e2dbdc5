"""The local loop's decaying rate, and the four base methods against NumPy (tests/fedsim/replay.py)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.algorithms import FedAvg, FedNova, FedProx, Scaffold
from fedsim.core import Algorithm, LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.training.local_loop import run_sgd
from tests.fedsim import replay
from tests.fedsim.federations import federation
from tests.fedsim.methods import run

SETTINGS = {
    "plain": LocalTraining(epochs=2, batch_size=8, lr=0.1),
    "momentum": LocalTraining(epochs=2, batch_size=8, lr=0.03, momentum=0.9, weight_decay=0.02),
    "decay": LocalTraining(epochs=3, batch_size=5, lr=0.1, momentum=0.5, weight_decay=0.01, lr_alpha=0.3),
}

METHODS: dict[str, tuple[Algorithm, Callable[..., Any]]] = {
    "fedavg": (FedAvg(), replay.fedavg),
    "fedprox": (FedProx(mu=0.3), lambda p, cohorts: replay.fedavg(p, cohorts, mu=0.3)),
    "fednova": (FedNova(), replay.fednova),
    "scaffold": (Scaffold(), lambda p, cohorts: replay.scaffold(p, cohorts)[0]),
    "scaffold-eta": (Scaffold(eta_g=0.7), lambda p, cohorts: replay.scaffold(p, cohorts, 0.7)[0]),
}


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_in_numpy(name: str, local: LocalTraining) -> None:
    """Unequal clients (3 to 38 examples, so 1 to 8 batches an epoch), six of ten in a round."""
    algorithm, again = METHODS[name]
    population = federation(model="logistic", rounds=3, cohort_size=6, local=local)
    results = run(algorithm, population)
    expected = again(population, [result.cohort for result in results])
    for result, w in zip(results, expected, strict=True):
        params = result.state.params
        np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_the_reach_is_the_way_under_a_constant_gradient(local: LocalTraining) -> None:
    """Without weight decay, whose gradient is not constant, in float64."""
    local = replace(local, weight_decay=0.0)
    population = federation([20], local=local, rounds=1)
    ctx, net = population.context(0), population.nets[0]
    pool = SerialPool(FedAvg(), population)
    task = pool.worker.loader.make_task(FedAvg(), ctx, 0, {}, {}, {})
    start = {key: value.double() for key, value in net.init(3).items()}
    slope = {key: torch.randn_like(value) for key, value in start.items()}

    def loss(params: Any, batch: Any) -> torch.Tensor:
        return sum((slope[key] * value).sum() for key, value in params.items())  # type: ignore[return-value]

    trained = run_sgd(ctx, task, start, loss)
    for key, value in trained.params.items():
        mean = (start[key] - value) / local.total_step_size(trained.steps)
        torch.testing.assert_close(mean, slope[key], rtol=1e-9, atol=1e-12)


@given(st.integers(1, 60), st.floats(0, 0.95), st.floats(0.001, 10))
def test_the_reach_is_fednovas_at_a_constant_rate(steps: int, momentum: float, lr: float) -> None:
    local = LocalTraining(lr=lr, momentum=momentum)
    work = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    assert local.total_step_size(steps) == pytest.approx(lr * work, rel=1e-9)
    assert LocalTraining(lr=lr).total_step_size(steps) == pytest.approx(lr * steps, rel=1e-12)
    assert local.total_step_size(0) == 0


def test_the_rate_decays_from_step_to_step_and_anew_in_every_round() -> None:
    local = LocalTraining(lr=0.001, lr_alpha=0.001, lr_power=0.75)
    assert local.lr_at(0) == 0.001
    assert local.lr_at(500) == pytest.approx(0.001 * 1.5**-0.75)
    assert LocalTraining(lr=0.07, lr_power=3.0).lr_at(1000) == 0.07
    off = federation(local=LocalTraining(epochs=2, batch_size=8, lr=0.1, lr_power=2.0))
    assert [r.digest for r in run(FedAvg(), off)] == [r.digest for r in run(FedAvg(), federation())]


def test_a_rate_that_falls_from_round_to_round() -> None:
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    falling = federation(local=replace(local, round_decay=0.5))
    assert [falling.context(t).local.lr for t in range(3)] == [0.1, 0.05, 0.025]
    found, still = run(FedAvg(), falling), run(FedAvg(), federation(local=local))
    assert [a.digest == b.digest for a, b in zip(found, still, strict=True)] == [True, False, False]
