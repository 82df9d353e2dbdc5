"""FedSAM: without its radius FedAvg, its steps in NumPy, running statistics, what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedSAM
from fedsim.clients.population import Population
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.models import make_net
from fedsim.training.effort import CostMeter
from tests.fedsim import replay
from tests.fedsim.algorithms.test_base_methods import SETTINGS
from tests.fedsim.federations import federation, gaussian_dataset
from tests.fedsim.methods import MOMENTUM, run, same_models, visited


def sam(client: replay.Client, w: replay.Array, rho: float) -> replay.Array:
    """The local steps of one client."""
    local, velocity, w = client.local, np.zeros_like(w), w.copy()
    for step, rows in enumerate(client.rows):
        x, y = client.data.x[rows], client.data.y[rows]
        first = replay.gradient(w, x, y)
        second = replay.gradient(w + rho * first / np.linalg.norm(first), x, y)
        velocity = local.momentum * velocity + second + local.weight_decay * w
        w -= local.lr * (1 + local.lr_alpha * step) ** -local.lr_power * velocity
    return w


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_three_rounds_in_numpy(local: LocalTraining) -> None:
    population = federation(model="logistic", rounds=3, cohort_size=6, local=local)
    w = replay.start(population)
    for number, result in enumerate(run(FedSAM(rho=0.4), population)):
        came = [replay.Client(population, number, client) for client in result.cohort]
        models = [sam(client, w, 0.4) for client in came]
        w = np.average(models, axis=0, weights=[client.examples for client in came])
        params = result.state.params
        np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=2e-5, atol=2e-6)


class Closed(FedSAM):
    """FedSAM that keeps the bias as it is."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        return super().train_client(replace(ctx, frozen=frozenset({"head.bias"})), task)


def test_the_radius_is_over_the_weights_that_train() -> None:
    """With the bias frozen, the norm and the shift are those of the weight alone."""
    local = LocalTraining(steps=1, batch_size=20, lr=0.1)
    population = federation([20], model="logistic", rounds=1, local=local)
    w, (result,) = replay.start(population), run(Closed(rho=0.4), population)
    client, moves = replay.Client(population, 0, 0), np.ones_like(w)
    moves[:, -1] = 0
    x, y = client.data.x[client.rows[0]], client.data.y[client.rows[0]]
    first = moves * replay.gradient(w, x, y)
    second = moves * replay.gradient(w + 0.4 * first / np.linalg.norm(first), x, y)
    expected = (w - 0.1 * second)[:, :-1]
    np.testing.assert_allclose(result.state.params["head.weight"].numpy(), expected, rtol=2e-5, atol=2e-6)


def test_without_a_radius_it_is_fedavg_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=6)
    assert same_models(FedAvg(), FedSAM(rho=0.0), population)
    assert not same_models(FedAvg(), FedSAM(), population)


def with_statistics() -> Population:
    flat = gaussian_dataset(features=16)
    train, test = (replace(part, x=part.x.reshape(-1, 1, 4, 4)) for part in (flat.train, flat.test))
    data = replace(flat, train=train, test=test, input_shape=(1, 4, 4))
    net = make_net("fedgen_cnn", input_shape=data.input_shape, num_classes=4)
    local = LocalTraining(steps=1, batch_size=8, lr=0.05)
    return replace(federation([20], rounds=1, local=local), dataset=data, nets=(net,))


def test_running_statistics_follow_the_passes_at_the_weights() -> None:
    """In the first step these weights are FedAvg's, so the statistics after it are, too."""
    population = with_statistics()
    net = population.nets[0]
    found, plain = (run(method, population)[0].state.params for method in (FedSAM(rho=0.5), FedAvg()))
    for key in net.keys:
        if key not in net.parameters:
            assert torch.equal(found[key], plain[key]), key
    assert any(not torch.equal(found[key], plain[key]) for key in net.parameters)


def test_a_gradient_of_zero_moves_nothing() -> None:
    """Zero weights, zero inputs and one example of each class: all classes are equally likely."""
    method, population = FedSAM(), federation(model="logistic")
    ctx, task = visited(method, population)
    first = population.nets[0].init(0)
    weights = {key: torch.zeros_like(value).requires_grad_() for key, value in first.items()}
    value = method.loss(ctx, task, weights, Batch(torch.zeros(4, 12), torch.arange(4)))
    assert float(value.detach()) == pytest.approx(np.log(4))
    for slope in torch.autograd.grad(value, list(weights.values())):
        assert not slope.any()


def test_two_gradients_a_step_cost_twice_and_update_once() -> None:
    population = federation(rounds=1)
    ctx = population.context(0)

    def cost(method: FedAvg) -> tuple[int, int]:
        spent = CostMeter(method, population).training_cost(ctx, method.init_server_state(ctx), range(10))
        return spent.updates, spent.flops

    updates, flops = cost(FedAvg())
    assert cost(FedSAM()) == (updates, 2 * flops)
    assert cost(FedSAM(rho=0.0)) == (updates, flops)
