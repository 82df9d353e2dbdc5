"""FedNova: equal steps, unequal steps, its bytes; NumPy's version is in test_base_methods.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedNova
from fedsim.core import LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.models import make_net
from tests.fedsim import replay
from tests.fedsim.algorithms.test_base_methods import SETTINGS
from tests.fedsim.federations import federation
from tests.fedsim.methods import run

STEPS = LocalTraining(steps=7, batch_size=4, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("local", [*SETTINGS.values(), STEPS], ids=[*SETTINGS, "steps"])
def test_equal_steps_are_fedavg_bit_for_bit(local: LocalTraining) -> None:
    """Clients of 17 to 20 examples make equally many batches of 5 or 8, but do not count the same."""
    sizes = [3, 8, 11, 30, 38] if local.steps else [17, 18, 19, 20, 17, 20]
    population = federation(sizes, local=local, cohort_size=4, rounds=4)
    if local.batch_size == 5:
        population = federation([16, 18, 19, 20, 17, 20], local=local, cohort_size=4, rounds=4)
    nova, plain = run(FedNova(), population), run(FedAvg(), population)
    assert [r.digest for r in nova] == [r.digest for r in plain]


def test_unequal_steps_are_not_fedavg() -> None:
    population = federation(rounds=1)
    assert run(FedNova(), population)[0].digest != run(FedAvg(), population)[0].digest


def test_clients_with_less_work_by_a_deadline_are_normalised_too() -> None:
    """Two of four equal clients train one epoch of five; the update is the paper's, in NumPy."""
    local = LocalTraining(epochs=5, batch_size=8, lr=0.1, momentum=0.9)
    population = federation([40] * 4, model="logistic", rounds=1, local=local)
    short = replace(population, settings=replace(population.settings, local=replace(local, epochs=1)))
    method, w = FedNova(), replay.start(population)
    ctx = replace(population.context(0), limits={2: 1, 3: 1})
    state = method.init_server_state(ctx)
    reduced = SerialPool(method, population).begin_training(ctx, state, range(4))()
    params = method.aggregate(ctx, state, reduced).params
    came = [replay.Client(short if client in ctx.limits else population, 0, client) for client in range(4)]
    effort = np.mean([client.reach for client in came])
    expected = w - effort * np.mean([(w - client.sgd(w)) / client.reach for client in came], 0)
    np.testing.assert_allclose(params["head.weight"].numpy(), expected[:, :-1], rtol=1e-4, atol=1e-5)


def test_bytes_are_the_models_and_one_number_more() -> None:
    population = federation(rounds=2, cohort_size=4)
    size = 4 * population.nets[0].count_parameters()
    for result in run(FedNova(), population):
        assert result.traffic.down == 4 * size
        assert result.traffic.up == 4 * (size + 4)


def test_clients_without_examples_change_nothing() -> None:
    population = federation([0, 12, 20], rounds=2)
    results = run(FedNova(), population)
    assert results[0].metrics["train_loss"] > 0
    assert all(torch.isfinite(value).all() for value in results[-1].state.params.values())


def test_several_architectures_are_normalised_within_each() -> None:
    """Equal steps within one architecture, other ones within the other: FedAvg in both."""
    population = federation([16, 24] * 4, rounds=2)
    data = population.dataset
    nets = tuple(make_net(kind, input_shape=data.input_shape, num_classes=4) for kind in ("mlp", "logistic"))
    mixed = replace(population, nets=nets)
    nova, plain = run(FedNova(), mixed)[-1].state, run(FedAvg(), mixed)[-1].state
    for model in ("0", "1"):
        for key, value in nova.params[model].items():
            torch.testing.assert_close(value, plain.params[model][key], rtol=1e-6, atol=1e-7)
