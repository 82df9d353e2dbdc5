"""q-FedAvg and AFL: where they are FedAvg, their equations in NumPy, stacks, bytes, and what they are for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedsim.algorithms import AFL, FedAvg, QFedAvg
from fedsim.algorithms.averaging.afl import project_onto_simplex
from fedsim.base.costs import Traffic
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining, ReducedUpdates
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from tests.fedsim import replay
from tests.fedsim.algorithms.test_base_methods import SETTINGS
from tests.fedsim.federations import federation
from tests.fedsim.methods import MOMENTUM, run, same_models

PLAIN = LocalTraining(epochs=1, batch_size=8, lr=0.1)


def mean_loss(population: Population, w: replay.Array, client: int) -> float:
    """F_k of a linear softmax classifier `w` [classes, features + 1]."""
    rows, train = population.partition.client_positions(client), population.dataset.train
    logits = np.hstack([train.x[rows].astype(np.float64), np.ones((len(rows), 1))]) @ w.T
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), train.y[rows]]))


def assert_model(params: dict[str, torch.Tensor], w: replay.Array) -> None:
    np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("q", [0.5, 2.0])
def test_three_rounds_of_q_fedavg_in_numpy(q: float, local: LocalTraining) -> None:
    """Algorithm 2: sums of p_k F_k^q D_k and of p_k h_k; 1 / L is the mean step of an average client."""
    population = federation(model="logistic", rounds=3, cohort_size=6, local=local)
    usual = replay.Client(population, 0, 4)  # 17 examples make as many batches as 19.2, the mean
    w, lipschitz = replay.start(population), len(usual.rows) / usual.reach
    for number, result in enumerate(run(QFedAvg(q=q), population)):
        step, total = np.zeros_like(w), 0.0
        for client in result.cohort:
            task, loss = replay.Client(population, number, client), mean_loss(population, w, client)
            change = lipschitz * (w - task.sgd(w))
            step += task.examples * loss**q * change
            total += task.examples * (q * loss ** (q - 1) * np.sum(change**2) + lipschitz * loss**q)
        w = w - step / total
        assert_model(result.state.params, w)


def test_a_client_of_weight_0_counts_for_nothing_also_if_it_diverged() -> None:
    """AFL gives weight 0 to clients with small losses, and 0 times NaN is NaN."""
    population = federation([8, 8, 8], rounds=1)
    method, ctx = AFL(), population.context(0)
    state = replace(method.init_server_state(ctx), mixture=torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    lost = {key: torch.full_like(value, torch.nan) for key, value in state.params.items()}

    class Diverging(AFL):
        def make_update(self, ctx: Any, task: Any, trained: Any) -> Any:
            update = super().make_update(ctx, task, trained)
            return update._replace(upload={**update.upload, "params": lost}) if task.client == 2 else update

    pool = SerialPool(Diverging(), population)
    reduced = pool.begin_training(ctx, state, range(3))()
    assert reduced.weights[2] == 0
    assert all(value.isfinite().all() for value in method.aggregate(ctx, state, reduced).params.values())


def test_q_0_is_fedavg_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=6)
    assert same_models(FedAvg(), QFedAvg(q=0.0), population)
    assert not same_models(FedAvg(), QFedAvg(q=1.0), population)


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_four_rounds_of_afl_in_numpy(local: LocalTraining) -> None:
    population = federation(model="logistic", rounds=4, cohort_size=6, local=local)
    w, clients = replay.start(population), population.partition.num_clients
    mixture = np.full(clients, 1 / clients)
    for number, result in enumerate(run(AFL(weight_lr=0.3), population)):
        models = [replay.Client(population, number, client).sgd(w) for client in result.cohort]
        ascent = np.zeros(clients)
        for client in result.cohort:
            ascent[client] = mean_loss(population, w, client) * clients / len(result.cohort)
        w = np.average(models, axis=0, weights=mixture[list(result.cohort)])
        moved = mixture + 0.3 * ascent
        found = minimize(
            lambda point, moved=moved: np.sum((point - moved) ** 2),
            mixture,
            jac=lambda point, moved=moved: 2 * (point - moved),
            bounds=[(0, 1)] * clients,
            constraints={"type": "eq", "fun": lambda point: point.sum() - 1},
            options={"ftol": 1e-14},
        )
        mixture = result.state.mixture.numpy()
        np.testing.assert_allclose(mixture, found.x, atol=1e-4)
        assert_model(result.state.params, w)
        assert result.method["weighted_clients"] == (mixture > 0).sum()


def test_the_default_rate_of_afl_follows_the_size_of_the_cohort() -> None:
    """A step is then a tenth of the loss times the equal weight: 0.1 K / N² for K of N clients."""
    population = federation([16] * 6, rounds=3, cohort_size=4, local=PLAIN)
    first, second = (run(each, population) for each in (AFL(), AFL(weight_lr=0.1 * 4 / 6**2)))
    assert [one.digest for one in first] == [other.digest for other in second]


def test_afl_without_ascent_is_fedavg_of_equal_clients() -> None:
    population = federation([16] * 6, rounds=3, cohort_size=4, local=PLAIN)
    for one, other in zip(run(FedAvg(), population), run(AFL(weight_lr=0.0), population), strict=True):
        for key, value in one.state.params.items():
            torch.testing.assert_close(value, other.state.params[key], rtol=1e-6, atol=1e-7)


def test_the_projection_is_a_mixture_and_keeps_mixtures() -> None:
    draws = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 7)) * 3)
    for draw in draws:
        point = project_onto_simplex(draw)
        assert float(point.sum()) == pytest.approx(1)
        assert bool((point >= 0).all())
        torch.testing.assert_close(project_onto_simplex(point), point)


@pytest.mark.parametrize("loss", [1e19, 1e38, np.inf])
def test_the_weights_stay_a_mixture_if_a_loss_is_huge(loss: float) -> None:
    population, method = federation([8, 8, 8, 8]), AFL()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = ReducedUpdates(
        payloads={"params": {}, "loss": [{"mean": torch.tensor(each)} for each in (loss, 0.5, 0.5, 0.5)]},
        clients=(0, 1, 2, 3),
        weights=(1.0,) * 4,
        num_examples=(8,) * 4,
        metrics={},
        traffic=Traffic(),
    )
    mixture = method.aggregate(ctx, state, reduced).mixture
    torch.testing.assert_close(mixture, torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", [QFedAvg(q=2.0), AFL(weight_lr=0.3)])
def test_stacked_clients_agree(method: Algorithm) -> None:
    population = federation(cohort_size=6, rounds=2)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(run(method, population), stacked, strict=True):
        for key, value in one.state.params.items():
            torch.testing.assert_close(value, other.state.params[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("method", "down"), [(QFedAvg(), 0), (AFL(), 4)])
def test_one_number_more_travels_up(method: Algorithm, down: int) -> None:
    population = federation(rounds=1, cohort_size=4)
    size = 4 * population.nets[0].count_parameters()
    (result,) = run(method, population)
    assert result.traffic.down == 4 * (size + down)
    assert result.traffic.up == 4 * (size + 4)


@pytest.mark.parametrize("method", [QFedAvg(), AFL()])
def test_clients_without_examples_change_nothing(method: Algorithm) -> None:
    population = federation([0, 0, 12], rounds=3, cohort_size=1)
    before = method.init_server_state(population.context(0)).params
    for result in run(method, population):
        same = all(torch.equal(value, result.state.params[key]) for key, value in before.items())
        assert same == (result.cohort != (2,))
        before = result.state.params


@pytest.mark.parametrize("method", [QFedAvg(q=5.0), AFL(weight_lr=0.5)])
def test_the_worst_client_has_a_smaller_loss_than_with_fedavg(method: Algorithm) -> None:
    """One client's labels contradict those of the others, and it has few examples."""
    population = federation(
        [40, 40, 40, 10],
        model="logistic",
        rounds=30,
        cohort_size=4,
        local=LocalTraining(epochs=1, batch_size=10, lr=0.1),
    )
    train = population.dataset.train
    labels = train.y.copy()
    odd = population.partition.client_positions(3)
    labels[odd] = (labels[odd] + 1) % 4
    population = replace(population, dataset=replace(population.dataset, train=replace(train, y=labels)))
    worst = []
    for each in (FedAvg(), method):
        params = run(each, population)[-1].state.params
        w = np.hstack([params["head.weight"].numpy(), params["head.bias"].numpy()[:, None]]).astype(
            np.float64
        )
        worst.append(max(mean_loss(population, w, client) for client in range(4)))
    assert worst[1] < worst[0]
