"""FedExP: where it is FedAvg, Algorithm 1 in NumPy, the model that it evaluates, its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.algorithms import FedAvg, FedExP
from fedsim.clients.population import Population
from fedsim.core import LocalTraining
from fedsim.models import make_net
from tests.fedsim import replay
from tests.fedsim.algorithms.test_base_methods import SETTINGS
from tests.fedsim.federations import federation
from tests.fedsim.methods import MOMENTUM, run, same_models


def by_class(**options: Any) -> Population:
    """The clients' changes differ: each client has examples of one or two classes."""
    population = federation(**options)
    train = population.dataset.train
    order = np.argsort(train.y, kind="stable")
    train = replace(train, x=train.x[order], y=train.y[order])
    return replace(population, dataset=replace(population.dataset, train=train))


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_four_rounds_in_numpy(local: LocalTraining) -> None:
    population = by_class(model="logistic", rounds=4, cohort_size=6, local=local)
    results = run(FedExP(epsilon=0.05), population)
    w, sizes = replay.start(population), []
    for number, result in enumerate(results):
        came = [replay.Client(population, number, client) for client in result.cohort]
        changes = [client.sgd(w) - w for client in came]
        share = np.array([client.examples for client in came]) / sum(client.examples for client in came)
        mean = sum(p * d for p, d in zip(share, changes, strict=True))
        norms = sum(p * np.sum(d**2) for p, d in zip(share, changes, strict=True))
        sizes.append(max(1.0, norms / (2 * (np.sum(mean**2) + 0.05))))
        w = w + sizes[-1] * mean
        params = result.state.params
        np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=1e-4, atol=1e-5)
        assert result.method["eta_g"] == pytest.approx(sizes[-1], rel=1e-4)
    assert max(sizes) > 1


@pytest.mark.parametrize("method", [FedExP(epsilon=1e6), FedExP()], ids=["large epsilon", "one client"])
def test_steps_of_size_1_are_fedavg_bit_for_bit(method: FedExP) -> None:
    """A single client has |D_1| = |D|, so that the quotient is below 1/2."""
    population = federation(local=MOMENTUM, cohort_size=1 if method.epsilon < 1 else 6)
    assert same_models(FedAvg(), method, population)


def test_longer_steps_are_not() -> None:
    assert not same_models(FedAvg(), FedExP(), by_class(cohort_size=6))


def test_the_mean_of_the_last_two_models_is_evaluated_and_personal() -> None:
    population = by_class(rounds=3, cohort_size=4)
    results, method = run(FedExP(), population), FedExP()
    for number, result in enumerate(results):
        ctx, state = population.context(number), result.state
        last = state.params
        expected = last
        if number:
            before = results[number - 1].state.params
            expected = {key: (before[key].double() + last[key].double()) / 2 for key in last}
        (model,) = method.deploy_models(ctx, state).values()
        personal = method.broadcast_personal(ctx, state)["params"]
        assert all(torch.equal(personal[key], value) for key, value in model.items())
        for key, value in expected.items():
            torch.testing.assert_close(model[key].double(), value.double(), rtol=1e-6, atol=1e-8)
            assert model[key].dtype == last[key].dtype
        test = population.dataset.test
        logits = population.nets[0](model, torch.tensor(test.x))
        loss = float(F.cross_entropy(logits, torch.tensor(test.y)))
        assert loss == pytest.approx(result.metrics["global_loss"], rel=1e-5)


def test_bytes_are_the_models_and_one_number_more() -> None:
    population = federation(rounds=2, cohort_size=4)
    size = 4 * population.nets[0].count_parameters()
    for result in run(FedExP(), population):
        assert result.traffic.down == 4 * size
        assert result.traffic.up == 4 * (size + 4)


def test_each_architecture_has_its_own_step_size() -> None:
    """One of the architectures has a single client: its steps have the size 1."""
    population = federation([16, 24, 20], rounds=3)
    data = population.dataset
    nets = tuple(make_net(kind, input_shape=data.input_shape, num_classes=4) for kind in ("mlp", "logistic"))
    for result in run(FedExP(), replace(population, nets=nets)):
        first, second = result.method["eta_g"]
        assert first >= 1
        assert second == 1


def test_a_round_without_examples_changes_nothing() -> None:
    population = federation([0, 0, 12], rounds=3, cohort_size=1)
    before = FedExP().init_server_state(population.context(0)).params
    for result in run(FedExP(), population):
        same = all(torch.equal(value, result.state.params[key]) for key, value in before.items())
        assert same == (result.cohort != (2,))
        before = result.state.params
