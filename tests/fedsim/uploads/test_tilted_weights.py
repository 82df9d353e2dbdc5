"""Tilted weights: identity, a recomputation in NumPy, stacks, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, FedDisco, FedEnsemble, FedPer
from fedsim.base import tree
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.uploads import TiltedWeights
from fedsim.uploads.aggregators import GeometricMedian, Mean, NormClipping
from fedsim.uploads.tilted_weights import MAX_EXPONENT
from tests.fedsim.federations import federation
from tests.fedsim.methods import run


@pytest.mark.parametrize("base", [FedAvg(), FedPer()])
def test_no_tilt_is_the_base_algorithm(base: Any) -> None:
    population = federation(cohort_size=5, rounds=3)
    plain = [result.digest for result in run(base, population)]
    assert [result.digest for result in run(TiltedWeights(base=base, tilt=0.0), population)] == plain


@pytest.mark.parametrize("tilt", [2.0, -1.0])
def test_three_rounds_in_numpy(tilt: float) -> None:
    population, base = federation(cohort_size=5, rounds=3), FedAvg()
    pool, net = SerialPool(base, population), population.nets[0]
    before: Any = base.init_server_state(population.context(0))
    for result in run(TiltedWeights(base=base, tilt=tilt), population):
        ctx, models, weights = population.context(result.round - 1), [], []
        broadcast = base.broadcast(ctx, before)
        for client in result.cohort:
            task = pool.worker.loader.make_task(base, ctx, client, broadcast, {}, None)
            rows = population.partition.client_positions(client)
            train = population.dataset.train
            x, y = torch.from_numpy(train.x[rows].copy()), torch.from_numpy(train.y[rows].copy())
            loss = float(torch.nn.functional.cross_entropy(net(before.params, x), y))
            weights.append(len(rows) * np.exp(tilt * loss))
            models.append(tree.flatten(base.train_client(ctx, task).upload["params"]).numpy())
        expected = np.average(models, axis=0, weights=weights)
        assert tree.flatten(result.state.params).numpy() == pytest.approx(expected, abs=1e-5)
        before = result.state


def test_only_the_difference_of_large_losses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    population = federation([20, 20])
    method, ctx = TiltedWeights(base=FedAvg(), tilt=10.0), population.context(0)
    loader, broadcast = SerialPool(method, population).worker.loader, {"params": ctx.init_params()}
    weights = []
    for client, loss in enumerate([5.5, 6.5]):
        monkeypatch.setattr(
            "fedsim.uploads.tilted_weights.measure_losses", lambda *_, x=loss: torch.tensor([x])
        )
        weights.append(method.weigh_client(ctx, loader.make_task(method, ctx, client, broadcast, {}, None)))
    assert weights[1] / weights[0] == pytest.approx(np.exp(10))


def test_a_small_tilted_weight_of_all_clients_is_no_weight_of_0() -> None:
    """With the largest exponent and two clients of equal losses the mean is the mean of both."""
    updates, one = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64), np.exp(MAX_EXPONENT)
    for weight in (1 / one, one):
        weights = torch.full((2,), weight, dtype=torch.float64)
        for rule in (Mean(), NormClipping(max_norm=100.0), GeometricMedian()):
            assert rule.combine(updates, weights, updates).update.tolist() == pytest.approx([2.0, 3.0])


def test_stacked_clients_have_the_same_weights() -> None:
    population, method = federation(cohort_size=6, rounds=2), TiltedWeights(base=FedAvg(), tilt=1.0)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(run(method, population), stacked, strict=True):
        for key, value in one.state.params.items():
            torch.testing.assert_close(value, other.state.params[key], rtol=1e-3, atol=1e-4)


def test_clients_without_examples_keep_the_weight_0() -> None:
    results = run(TiltedWeights(base=FedAvg(), tilt=5.0), federation([0, 0, 20, 20], rounds=1))
    assert torch.isfinite(tree.flatten(results[0].state.params)).all()


@pytest.mark.parametrize("base", [FedDisco(a=0.0, b=1e-9), FedEnsemble(mode="permutation", models=1)])
def test_a_server_that_takes_means_of_its_own_tilts_them(base: Any) -> None:
    """Both methods are FedAvg with these hyper-parameters."""
    population = federation(cohort_size=5, rounds=2)
    expected = run(TiltedWeights(base=FedAvg(), tilt=3.0), population)[-1].state.params
    params = run(TiltedWeights(base=base, tilt=3.0), population)[-1].state.params
    for key, value in (params["0"] if isinstance(base, FedEnsemble) else params).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "kt_pfl", "feddistill", "fedproto"])
def test_own_weights_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has no weights to tilt"):
        TiltedWeights(base=ALGORITHMS[name](), tilt=1.0)
