"""FedAdagrad, FedAdam and FedYogi: limits that are FedAvg and FedAvgM, NumPy, torch.optim, architectures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from fedsim.algorithms.averaging.fedopt import FedOpt
from fedsim.clients.population import Population
from fedsim.engine.pools import SerialPool
from fedsim.models import make_net
from tests.fedsim import replay
from tests.fedsim.federations import federation, gaussian_dataset
from tests.fedsim.methods import MOMENTUM, run

KINDS = (FedAdagrad, FedAdam, FedYogi)


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance)


def numpys(method: FedOpt, population: Population, cohorts: replay.Cohorts) -> list[replay.Array]:
    """Algorithm 2, with a loop for the sign of FedYogi."""
    w, found = replay.start(population), []
    m, v = np.zeros_like(w), np.full_like(w, method.tau**2)
    for number, cohort in enumerate(cohorts):
        came = [replay.Client(population, number, client) for client in cohort]
        changes = [client.sgd(w) - w for client in came]
        d = np.average(changes, axis=0, weights=[client.examples for client in came])
        m = method.beta1 * m + (1 - method.beta1) * d
        for at in np.ndindex(w.shape):
            if isinstance(method, FedAdagrad):
                v[at] += d[at] ** 2
            elif isinstance(method, FedYogi):
                sign = int(v[at] > d[at] ** 2) - int(v[at] < d[at] ** 2)
                v[at] -= (1 - method.beta2) * d[at] ** 2 * sign
            elif isinstance(method, FedAdam):
                v[at] = method.beta2 * v[at] + (1 - method.beta2) * d[at] ** 2
        w = w + method.server_lr * m / (np.sqrt(v) + method.tau)
        found.append(w)
    return found


@pytest.mark.parametrize("tau", [0.001, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_four_rounds_in_numpy(kind: type[FedOpt], tau: float) -> None:
    """With both signs of FedYogi: some changes are smaller than tau, others larger."""
    method = kind(tau=tau, server_lr=0.03, beta1=0.6)
    population = federation(model="logistic", rounds=4, cohort_size=6, local=MOMENTUM)
    results = run(method, population)
    for result, w in zip(
        results, numpys(method, population, [result.cohort for result in results]), strict=True
    ):
        params = result.state.params
        np.testing.assert_allclose(params["head.weight"].numpy(), w[:, :-1], rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(params["head.bias"].numpy(), w[:, -1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [FedAdagrad, FedYogi])
def test_with_a_large_tau_it_is_fedavgm_of_the_form_average(kind: type[FedOpt]) -> None:
    """Then sqrt(v) + tau is 2 tau, and the rate 1."""
    population = federation(local=MOMENTUM, cohort_size=6, rounds=4)
    found = run(kind(tau=1e4, server_lr=2e4, beta1=0.7), population)
    wanted = run(FedAvgM(beta=0.7, form="average"), population)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.state.params, other.state.params)


def test_fedadam_without_memory_and_with_a_large_tau_is_fedavg() -> None:
    population = federation(local=MOMENTUM, cohort_size=6, rounds=3)
    found = run(FedAdam(tau=1e6, server_lr=1e6, beta1=0.0, beta2=0.0), population)
    for one, other in zip(found, run(FedAvg(), population), strict=True):
        assert_close(one.state.params, other.state.params)


@pytest.mark.parametrize("tau", [1e-6, 0.05])
def test_the_first_second_moments_of_fedyogi_and_fedadam(tau: float) -> None:
    """They differ by (1 - beta2) tau^2 where |D| > tau; so the steps are one for a small tau."""
    population = federation(rounds=1)
    adam, yogi = (run(kind(tau=tau, beta2=0.9), population)[0].state for kind in (FedAdam, FedYogi))
    (mean,) = run(FedAvg(), population)
    start = population.nets[0].init(population.settings.seed)
    for key, v in adam.second_moment.items():
        d = mean.state.params[key].double() - start[key].double()
        more = torch.where(d.abs() > tau, tau**2, tau**2 - 2 * d**2) * 0.1
        torch.testing.assert_close(yogi.second_moment[key].double(), v + more, rtol=1e-5, atol=1e-9)
    if tau < 1e-5:
        assert_close(yogi.params, adam.params, 1e-4)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_steps_are_those_of_torch(name: str) -> None:
    """torch.optim on the pseudo-gradient -D, in float64, with v = tau^2 at first.

    torch divides Adam's moments by 1 - beta^t. Rates and eps that undo this division give Algorithm 2.
    """
    tau, rate, beta1, beta2 = 0.02, 0.05, 0.9, 0.99
    method: FedOpt = FedAdagrad(tau=tau, server_lr=rate)
    if name == "adam":
        method = FedAdam(tau=tau, server_lr=rate, beta1=beta1, beta2=beta2)
    population = federation(rounds=4, cohort_size=10)
    pool, key = SerialPool(FedAvg(), population), "fc1.0.weight"
    state = method.init_server_state(population.context(0))
    weight = state.params[key].double().clone().requires_grad_()
    optimizer: torch.optim.Optimizer = torch.optim.Adagrad(
        [weight], lr=rate, eps=tau, initial_accumulator_value=tau**2
    )
    if name == "adam":
        optimizer = torch.optim.Adam([weight], betas=(beta1, beta2))
        optimizer.state[weight] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.full_like(weight, tau**2),
        }
    for number, result in enumerate(run(method, population), start=1):
        mean = pool.begin_training(population.context(number - 1), state, range(10))()
        weight.grad = state.params[key].double() - mean["params"][key]
        if name == "adam":
            correction = (1 - beta2**number) ** 0.5
            optimizer.param_groups[0].update(lr=rate * (1 - beta1**number) / correction, eps=tau / correction)
        optimizer.step()
        state = result.state
        torch.testing.assert_close(state.params[key].double(), weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_larger_rate_is_a_proportionally_larger_first_step() -> None:
    population = federation(rounds=1)
    start = population.nets[0].init(population.settings.seed)
    short, long = (run(FedAdam(server_lr=rate), population)[0].state.params for rate in (0.01, 0.03))
    for key, before in start.items():
        torch.testing.assert_close(long[key] - before, 3 * (short[key] - before), rtol=1e-4, atol=1e-6)


def test_statistics_of_normalisation_layers_become_the_mean() -> None:
    flat = gaussian_dataset(features=16)
    train, test = (replace(part, x=part.x.reshape(-1, 1, 4, 4)) for part in (flat.train, flat.test))
    data = replace(flat, train=train, test=test, input_shape=(1, 4, 4))
    net = make_net("fedgen_cnn", input_shape=data.input_shape, num_classes=4)
    population = replace(federation(rounds=1, cohort_size=2), dataset=data, nets=(net,))
    state, plain = run(FedAdam(), population)[0].state, run(FedAvg(), population)[0].state
    assert set(state.second_moment) == set(net.parameters) < set(net.keys)
    for key in set(net.keys) - set(net.parameters):
        assert torch.equal(state.params[key], plain.params[key])


@pytest.mark.parametrize("kind", KINDS)
def test_architectures_have_their_own_moments(kind: type[FedOpt]) -> None:
    """An architecture of which no client came keeps its model and its moments."""
    population = federation(rounds=3, cohort_size=1)
    data = population.dataset
    nets = tuple(make_net(name, input_shape=data.input_shape, num_classes=4) for name in ("mlp", "logistic"))
    mixed = replace(population, nets=nets)
    before = kind().init_server_state(mixed.context(0))
    for result in run(kind(), mixed):
        (client,) = result.cohort
        for each in (0, 1):
            for name in ("params", "first_moment", "second_moment"):
                old, new = getattr(before, name)[str(each)], getattr(result.state, name)[str(each)]
                same = all(torch.equal(value, new[key]) for key, value in old.items())
                assert same == (client % 2 != each)
        before = result.state


def test_a_round_without_examples_changes_nothing() -> None:
    population = federation([0, 0, 12], rounds=3, cohort_size=1)
    method = FedYogi()
    before = method.init_server_state(population.context(0))
    for result in run(method, population):
        if result.cohort != (2,):
            assert all(torch.equal(v, result.state.params[k]) for k, v in before.params.items())
            assert all(torch.equal(v, result.state.second_moment[k]) for k, v in before.second_moment.items())
        before = result.state
