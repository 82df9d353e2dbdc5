"""MimeLite: without momentum FedAvg, with single full steps central SGD, Algorithm 1 in NumPy, its costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.algorithms import FedAvg, MimeLite
from fedsim.core import ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.models import make_net
from fedsim.training.effort import CostMeter
from tests.fedsim import replay
from tests.fedsim.algorithms.test_base_methods import SETTINGS
from tests.fedsim.federations import federation
from tests.fedsim.methods import MOMENTUM, run, same_models


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_four_rounds_in_numpy(local: LocalTraining) -> None:
    """The factor 1 - beta is at the gradients here, not at the learning rate."""
    beta = 0.7
    population = federation(model="logistic", rounds=4, cohort_size=6, local=local)
    data, w = population.dataset.train, replay.start(population)
    m = np.zeros_like(w)
    for number, result in enumerate(run(MimeLite(beta=beta), population)):
        came = [replay.Client(population, number, client) for client in result.cohort]
        models, slopes = [], []
        for client, held in zip(came, map(population.partition.client_positions, result.cohort), strict=True):
            velocity, own = np.zeros_like(w), w.copy()
            for step, rows in enumerate(client.rows):
                slope = replay.gradient(own, data.x[rows], data.y[rows]) + local.weight_decay * own
                velocity = local.momentum * velocity + (1 - beta) * slope + beta * m
                own -= local.lr * (1 + local.lr_alpha * step) ** -local.lr_power * velocity
            models.append(own)
            slopes.append(replay.gradient(w, data.x[held], data.y[held]) + local.weight_decay * w)
        sizes = [client.examples for client in came]
        w = np.average(models, axis=0, weights=sizes)
        m = beta * m + (1 - beta) * np.average(slopes, axis=0, weights=sizes)
        params, momentum = result.state.params, result.state.momentum
        np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(momentum["head.weight"].numpy(), m[:, :-1], rtol=1e-4, atol=1e-5)
        assert result.method["momentum_norm"] == pytest.approx(np.linalg.norm(m), rel=1e-4)


def test_without_momentum_it_is_fedavg_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=6)
    assert same_models(FedAvg(), MimeLite(beta=0.0), population)
    assert not same_models(FedAvg(), MimeLite(), population)


def test_single_full_steps_are_central_sgd_with_momentum() -> None:
    """On all examples at once: m <- beta m + (1 - beta) g, w <- w - lr m."""
    local, beta = LocalTraining(steps=1, batch_size=200, lr=0.3, weight_decay=0.01), 0.8
    population = federation(rounds=5, local=local)
    net, train = population.nets[0], population.dataset.train
    held = np.concatenate([population.partition.client_positions(client) for client in range(10)])
    x, y = torch.from_numpy(train.x[held]), torch.from_numpy(train.y[held])
    params = net.init(population.settings.seed)
    m = {key: torch.zeros_like(value) for key, value in params.items()}
    for result in run(MimeLite(beta=beta), population):
        weights = {key: value.clone().requires_grad_() for key, value in params.items()}
        loss = F.cross_entropy(net(weights, x), y)
        for key, slope in zip(params, torch.autograd.grad(loss, list(weights.values())), strict=True):
            m[key] = beta * m[key] + (1 - beta) * (slope + 0.01 * params[key])
            params[key] = params[key] - local.lr * m[key]
            torch.testing.assert_close(result.state.params[key], params[key], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(result.state.momentum[key], m[key], rtol=1e-4, atol=1e-5)


def test_bytes_are_twice_the_models_in_both_directions() -> None:
    population = federation(rounds=2, cohort_size=4)
    size = 4 * population.nets[0].count_parameters()
    for result in run(MimeLite(), population):
        assert result.traffic.down == result.traffic.up == 4 * 2 * size


@pytest.mark.parametrize(
    ("local", "examples"),
    [(LocalTraining(epochs=4, batch_size=8), 80), (LocalTraining(steps=5, batch_size=8), 36)],
    ids=["epochs", "steps"],
)
def test_a_full_gradient_costs_a_pass_over_all_examples(local: LocalTraining, examples: int) -> None:
    """Five steps have batches of 8, 8, 4, 8 and 8 of the 20 examples."""
    population = federation([20] * 10, rounds=1, local=local)
    ctx = population.context(0)

    def cost(method: FedAvg) -> tuple[int, int]:
        spent = CostMeter(method, population).training_cost(ctx, method.init_server_state(ctx), range(10))
        return spent.updates, spent.flops

    (updates, flops), found = cost(FedAvg()), cost(MimeLite())
    assert found == (updates, flops * (examples + 20) // examples)


def test_clients_without_examples_have_no_gradient() -> None:
    population = federation([0, 0, 12], rounds=4, cohort_size=1)
    method = MimeLite()
    before = method.init_server_state(population.context(0))
    for result in run(method, population):
        same = all(torch.equal(value, result.state.params[key]) for key, value in before.params.items())
        assert same == (result.cohort != (2,))
        assert all(torch.isfinite(value).all() for value in result.state.momentum.values())
        before = result.state


class Closed(MimeLite):
    """MimeLite that trains the head alone."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        closed = frozenset(key for key in ctx.net.parameters if not key.startswith("head"))
        return super().train_client(replace(ctx, frozen=closed), task)


def test_weights_that_do_not_train_have_no_momentum() -> None:
    *_, result = run(Closed(), federation(rounds=2))
    assert {key for key, value in result.state.momentum.items() if value.any()} == {
        "head.weight",
        "head.bias",
    }


def test_each_architecture_has_its_own_momentum() -> None:
    """Each half ends as a federation of its own would: here FedAvg's, without momentum."""
    population = federation(rounds=3)
    data = population.dataset
    nets = tuple(make_net(kind, input_shape=data.input_shape, num_classes=4) for kind in ("mlp", "logistic"))
    mixed = replace(population, nets=nets)
    found, plain = run(MimeLite(beta=0.0), mixed)[-1].state, run(FedAvg(), mixed)[-1].state
    for model in ("0", "1"):
        assert all(torch.equal(value, found.params[model][key]) for key, value in plain.params[model].items())
        assert found.momentum[model].keys() == found.params[model].keys()
