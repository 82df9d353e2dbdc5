"""FedAvg and FedProx: identities with simpler methods first, then an independent re-computation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.algorithms import (
    ALGORITHMS,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedLC,
    FedNTD,
    FedProx,
    FedRS,
    FedSAM,
    FedYogi,
)
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.clients.population import Population
from fedsim.clients.sampling import draw_batches
from fedsim.core import Algorithm, Batch, LocalTraining
from fedsim.core.capabilities import select_cohort
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.training.losses import cross_entropy
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, slow_unless_varied


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(epochs=3, batch_size=8, lr=0.1),
        LocalTraining(steps=7, batch_size=16, lr=0.05, momentum=0.9, weight_decay=1e-3),
    ],
)
def test_one_client_with_all_data_is_plain_sgd_bit_for_bit(local: LocalTraining) -> None:
    population = federation([192], local=local, rounds=3)
    results = run(FedAvg(), population)

    net, data = population.nets[0], population.dataset
    params = {
        key: value.clone().requires_grad_() for key, value in net.init(population.settings.seed).items()
    }
    model = list(params.values())
    for number in range(3):
        optimiser = torch.optim.SGD(
            model, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
        )
        order = rng.stream(population.settings.seed, "shuffle", number, 0)
        for rows in draw_batches(order, 192, local.steps_for(192), local.batch_size):
            x, y = torch.from_numpy(data.train.x[rows]), torch.from_numpy(data.train.y[rows])
            optimiser.zero_grad()
            hidden = F.relu(F.linear(x, params["fc1.0.weight"], params["fc1.0.bias"]))
            logits = F.linear(hidden, params["head.weight"], params["head.bias"])
            F.cross_entropy(logits, y).backward()
            optimiser.step()
        for key, value in results[number].state.params.items():
            assert torch.equal(value, params[key].detach()), (number, key)


def test_fedprox_without_its_term_is_fedavg_bit_for_bit() -> None:
    plain, prox = run(FedAvg(), federation()), run(FedProx(mu=0.0), federation())
    assert [r.digest for r in plain] == [r.digest for r in prox]


def test_fedprox_with_a_heavy_term_barely_moves() -> None:
    # lr * mu < 2 keeps the step itself stable: 1e3 * 1e-3 = 1 pulls back all of the drift at every step.
    local = LocalTraining(epochs=2, batch_size=8, lr=1e-3)
    population = federation(local=local, rounds=1)
    start = population.nets[0].init(population.settings.seed)

    def drift(algorithm: Algorithm) -> float:
        params = run(algorithm, population)[0].state.params
        return float(sum(((params[key] - start[key]) ** 2).sum() for key in start) ** 0.5)

    assert drift(FedProx(mu=1e3)) < 0.3 * drift(FedAvg())
    assert drift(FedProx(mu=1e3)) < 0.01


def test_fedprox_loss_is_the_papers() -> None:
    population = federation([20], rounds=1)
    pool = SerialPool(FedProx(mu=0.5), population)
    ctx, net = population.context(0), population.nets[0]
    received, trained = net.init(1), net.init(2)
    task = pool.worker.loader.make_task(FedProx(mu=0.5), ctx, 0, {"params": received}, {}, {})
    batch = task.batches[0]
    base = float(FedAvg().loss(ctx, task, trained, batch))
    distance = sum(
        float(np.sum((trained[key].numpy().astype(np.float64) - received[key].numpy()) ** 2))
        for key in trained
    )
    found = float(FedProx(mu=0.5).loss(ctx, task, trained, batch))
    assert found == pytest.approx(base + 0.25 * distance, rel=1e-6)


def test_the_server_takes_the_weighted_mean_of_the_clients_models() -> None:
    """Recomputed in NumPy from what every client uploads."""
    population = federation(rounds=1, cohort_size=5)
    algorithm = FedAvg()
    result = run(algorithm, population)[0]
    pool = SerialPool(algorithm, population)
    ctx = population.context(0)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server_state(ctx))
    uploads, sizes = [], []
    for client in result.cohort:
        task = pool.worker.loader.make_task(algorithm, ctx, client, broadcast, {}, None)
        uploads.append(algorithm.train_client(ctx, task).upload["params"])
        sizes.append(population.partition.size(client))
    for key, value in result.state.params.items():
        stacked = np.stack([upload[key].numpy().astype(np.float64) for upload in uploads])
        mean = np.average(stacked, axis=0, weights=sizes)
        np.testing.assert_allclose(value.numpy(), mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", slow_unless_varied(sorted(ALGORITHMS)))
def test_every_method_learns_and_counts_its_bytes(name: str) -> None:
    population = federation(rounds=8)
    algorithm = quick(name)
    results = run(algorithm, population)
    accuracies = [result.metrics.get("global_accuracy") for result in results]
    if algorithm.deploys_models:
        assert accuracies[-1] > max(0.8, accuracies[0] - 0.05)
    else:
        assert set(accuracies) == {None}
        assert results[-1].metrics["train_loss"] < results[0].metrics["train_loss"]
    for result in results:
        assert sum(result.traffic.by_payload.values()) == result.traffic.down + result.traffic.up


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx()])
def test_averaging_sends_one_model_each_way(algorithm: Algorithm) -> None:
    population = federation(rounds=1)
    traffic = run(algorithm, population)[0].traffic
    assert traffic.down == traffic.up == 10 * 4 * population.nets[0].count_parameters()


@pytest.mark.parametrize(
    "active", [FedAdagrad(), FedAdam(), FedYogi(), FedSAM(), FedLC(), FedRS(), FedNTD()], ids=str
)
def test_changes_on_one_side_add_no_traffic(active: Algorithm) -> None:
    population = federation(cohort_size=6)
    found, plain = run(active, population), run(FedAvg(), population)
    assert [r.traffic for r in found] == [r.traffic for r in plain]
    assert found[-1].digest != plain[-1].digest


def test_cohorts_are_uniform_samples_without_replacement() -> None:
    population = federation(cohort_size=4, rounds=200)
    ctx = population.context(0)
    seen = np.zeros(10)
    for number in range(400):
        cohort = select_cohort(FedAvg(), ctx, None, rng.stream(1, "cohort", number))
        assert len(set(cohort)) == 4
        assert list(cohort) == sorted(cohort)
        seen[list(cohort)] += 1
    # each client is expected 160 times, with a standard deviation of sqrt(400 * 0.4 * 0.6) = 9.8
    assert np.abs(seen - 160).max() < 5 * 9.8


def test_clients_of_several_architectures_are_averaged_within_each() -> None:
    """The clients of one architecture end as if the others were not there."""
    population = federation(rounds=2)
    data, kinds = population.dataset, ["mlp", "logistic"]
    nets = tuple(make_net(k, input_shape=data.input_shape, num_classes=data.num_classes) for k in kinds)
    mixed = replace(population, nets=nets)
    algorithm = FedAvg()
    results = run(algorithm, mixed)
    pool = SerialPool(algorithm, mixed)
    for model in (0, 1):
        ctx = mixed.context(0).for_architecture(model)
        state = algorithm.init_server_state(ctx)
        uploads, sizes = [], []
        for client in range(model, 10, 2):
            task = pool.worker.loader.make_task(
                algorithm, ctx, client, algorithm.broadcast(ctx, state), {}, None
            )
            uploads.append(algorithm.train_client(ctx, task).upload["params"])
            sizes.append(mixed.partition.size(client))
        for key, value in results[0].state.params[str(model)].items():
            mean = np.average([u[key].numpy().astype(np.float64) for u in uploads], axis=0, weights=sizes)
            np.testing.assert_allclose(value.numpy(), mean, rtol=1e-6, atol=1e-8)
    counts = [net.count_parameters() for net in nets]
    assert results[0].traffic.up == results[0].traffic.down == 4 * 5 * sum(counts)
    metrics = results[0].metrics
    both = [metrics["global_0_accuracy"], metrics["global_1_accuracy"]]
    assert metrics["global_accuracy"] == pytest.approx(sum(both) / 2)


def test_several_labels_per_example_with_unknown_ones() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    y = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    found = cross_entropy(logits, Batch(logits, y))
    expected = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(0.5)) + np.log1p(np.exp(-3.0))) / 3
    assert float(found) == pytest.approx(expected, rel=1e-6)
    masked = cross_entropy(logits, Batch(logits, y, torch.tensor([1.0, 0.0])))
    assert float(masked) == pytest.approx(np.log1p(np.exp(-2.0)), rel=1e-6)


def test_architectures_of_one_job_do_not_begin_with_the_same_weights() -> None:
    """Their first layers are of one shape; the first of them begins as it does alone."""
    population = federation(hidden=6)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    nets = tuple(make_net("mlp", hidden=6, layers=layers, **shape) for layers in (1, 2))
    ctx = replace(population, nets=nets).context(0)
    params = FedAvg().init_server_state(ctx).params
    first, second = ({key: value for key, value in params[m].items() if value.dim() == 2} for m in "01")
    shared = [key for key in first.keys() & second.keys() if first[key].shape == second[key].shape]
    assert shared
    assert not any(torch.equal(first[key], second[key]) for key in shared)
    alone = FedAvg().init_server_state(population.context(0)).params
    assert all(torch.equal(params["0"][key], value) for key, value in alone.items())
    for m in (0, 1):
        assert digest(ctx.for_architecture(m).cached_init_params()) == digest(params[str(m)])
