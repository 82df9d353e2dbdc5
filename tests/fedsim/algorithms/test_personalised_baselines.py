"""Per-FedAvg, pFedMe and FedALA once more in NumPy, on the softmax classifier of tests/fedsim/replay.py."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.algorithms import FedALA, FedAvg, PerFedAvg, PFedMe
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base import rng
from fedsim.base.costs import Cost
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Batch, Context, LocalTraining
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.training.effort import CostMeter
from fedsim.training.flops import example_flops
from fedsim.training.losses import cross_entropy
from tests.fedsim.federations import federation
from tests.fedsim.replay import Array, Client, gradient, start

SIZES = [3, 8, 11, 16, 20, 24, 30]


def linear(**changes: Any) -> Population:
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    settings = {"rounds": 3, "cohort_size": 4, "local": local, **changes}
    return federation(SIZES, model="logistic", **settings)


def run(algorithm: Algorithm, population: Population) -> tuple[list[RoundResult], SerialPool]:
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool)), pool


def matrix(params: Tree) -> Array:
    return np.hstack([params["head.weight"].numpy(), params["head.bias"].numpy()[:, None]])


def near(params: Tree, expected: Array) -> None:
    np.testing.assert_allclose(matrix(params), expected, rtol=2e-5, atol=2e-6)


def mean_loss(w: Array, x: Array, y: Array) -> float:
    logits = np.hstack([x.astype(np.float64), np.ones((len(x), 1))]) @ w.T
    top = logits.max(1)
    picked = logits[np.arange(len(y)), y]
    return float((top + np.log(np.exp(logits - top[:, None]).sum(1)) - picked).mean())


@pytest.mark.parametrize(("size", "passes", "moves"), [(8, 2, 1), (16, 2, 1), (24, 4, 2)])
def test_per_fedavg_counts_the_passes_that_it_makes(
    size: int, passes: int, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of 1, 2 and 3 batches: a pass for every gradient, and a move for every second one."""
    population = federation([size], model="logistic", rounds=1, local=LocalTraining(epochs=1, batch_size=8))
    gone_through: list[int] = []

    def counted(_ctx: Context, logits: Tensor, batch: Batch) -> Tensor:
        gone_through.append(len(batch.x))
        return cross_entropy(logits, batch)

    monkeypatch.setattr("fedsim.algorithms.personalized.per_fedavg.supervised_loss", counted)
    algorithm, net = PerFedAvg(), population.nets[0]
    ctx = population.context(0)
    state = make_initial_state(algorithm, population)
    cost = CostMeter(algorithm, population).training_cost(ctx, state, [0])
    SerialPool(algorithm, population).begin_training(ctx, state, [0])()
    assert gone_through == [8] * passes
    each = example_flops(net, net.parameters, torch.zeros(population.dataset.input_shape))
    assert cost == Cost(updates=moves * net.count_parameters(), flops=8 * passes * each)


def test_per_fedavg_takes_first_order_meta_steps() -> None:
    """w <- w - beta grad f(w - alpha grad f(w; b1); b2) on pairs of batches; 30 examples make 8, 3 make 2."""
    population = linear()
    algorithm = PerFedAvg(alpha=0.07, beta=0.05)
    results, _ = run(algorithm, population)
    data, w = population.dataset.train, start(population)
    for number, result in enumerate(results):
        models = []
        for client in result.cohort:
            rows, v = Client(population, number, client).rows, w.copy()
            for at in range(0, len(rows), 2):
                first, second = rows[at], rows[min(at + 1, len(rows) - 1)]
                inner = v - 0.07 * gradient(v, data.x[first], data.y[first])
                v -= 0.05 * gradient(inner, data.x[second], data.y[second])
            models.append(v)
        w = np.average(models, axis=0, weights=[SIZES[client] for client in result.cohort])
        near(result.state.params, w)


def test_beta_follows_no_decay_within_a_round_and_over_rounds() -> None:
    decaying = LocalTraining(epochs=2, batch_size=8, lr=0.1, lr_alpha=0.5, round_decay=0.5)
    for algorithm, is_constant in ((PerFedAvg(beta=0.05), True), (PerFedAvg(), False)):
        plain, decayed = (
            run(algorithm, linear(**local))[0][-1].digest for local in ({}, {"local": decaying})
        )
        assert (plain == decayed) == is_constant


def test_a_batch_that_is_left_over_serves_for_both_steps() -> None:
    """A client with fewer examples than a batch trains, too: in PFLlib it would have no step at all."""
    population = linear(local=LocalTraining(epochs=1, batch_size=8, lr=0.1), rounds=1)
    algorithm, ctx = PerFedAvg(alpha=0.07), population.context(0)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    loader, data, w = (
        SerialPool(algorithm, population).worker.loader,
        population.dataset.train,
        start(population),
    )
    for client, pairs in ((0, 1), (2, 1), (4, 2)):
        task = loader.make_task(algorithm, ctx, client, down, {}, None)
        rows, v = Client(population, 0, client).rows, w.copy()
        steps = [(at, min(at + 1, len(rows) - 1)) for at in range(0, len(rows), 2)]
        assert len(steps) == pairs
        for one, other in steps:
            inner = v - 0.07 * gradient(v, data.x[rows[one]], data.y[rows[one]])
            v -= 0.1 * gradient(inner, data.x[rows[other]], data.y[rows[other]])
        near(algorithm.train_client(ctx, task).upload["params"], v)


def test_per_fedavg_is_scored_after_one_step_on_one_batch() -> None:
    population = linear(rounds=1)
    algorithm, ctx = PerFedAvg(alpha=0.5), population.context(0)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    loader, data, w = (
        SerialPool(algorithm, population).worker.loader,
        population.dataset.train,
        start(population),
    )
    tuned = replace(ctx, local=algorithm.plan_tuning(ctx))
    task = loader.make_task_without_batches(algorithm, tuned, 5, down, {}, None)
    near(algorithm.personalize(tuned, task), w)
    task = task._replace(batches=loader.make_batches(algorithm, tuned, 5, occasion="personal-"))
    (batch,) = task.batches
    assert len(batch.y) == 8
    near(algorithm.personalize(tuned, task), w - 0.5 * gradient(w, batch.x.numpy(), batch.y.numpy()))
    held = data.x[population.partition.client_positions(5)]
    assert all((held == row).all(1).any() for row in batch.x.numpy())


def test_the_inner_step_of_per_fedavg_leaves_frozen_blocks_as_they_are() -> None:
    population, algorithm = federation(SIZES), PerFedAvg(alpha=0.5)
    net, x = population.nets[0], torch.from_numpy(population.dataset.train.x[:16].copy())
    first, second = (Batch(x[at : at + 8], torch.arange(8) % 4) for at in (0, 8))
    params = net.init(1)
    head = {key: params[key].clone().requires_grad_() for key in net.head}
    value = cross_entropy(net({**params, **head}, first.x), first)
    slopes = torch.autograd.grad(value, list(head.values()))
    stepped = {key: params[key] - 0.5 * slope for key, slope in zip(head, slopes, strict=True)}
    expected = cross_entropy(net({**params, **stepped}, second.x), second)
    ctx = replace(population.context(0), frozen=frozenset(net.body))
    task = SerialPool(algorithm, population).worker.loader.make_task(
        algorithm, ctx, 5, {"params": params}, {}, None
    )
    found = algorithm.loss(ctx, task, params, second._replace(noise={"first": first}))
    torch.testing.assert_close(found, expected)


def test_pfedme_pulls_the_shared_model_to_its_own() -> None:
    """Five inner steps on f + 4/2 |theta - w|^2, then w <- w - 0.1 * 4 (w - theta), batch by batch."""
    population = linear()
    algorithm = PFedMe(lambda_prox=4.0, inner_steps=5, lr_p=0.03, beta=0.8)
    results, pool = run(algorithm, population)
    data, w, thetas = population.dataset.train, start(population), {}
    for number, result in enumerate(results):
        models = []
        for client in result.cohort:
            v, theta = w.copy(), w.copy()
            for rows in Client(population, number, client).rows:
                for _ in range(5):
                    theta = theta - 0.03 * (gradient(theta, data.x[rows], data.y[rows]) + 4 * (theta - v))
                v = v - 0.1 * 4 * (v - theta)
            thetas[client] = theta
            models.append(v)
        mean = np.average(models, axis=0, weights=[SIZES[client] for client in result.cohort])
        w = 0.2 * w + 0.8 * mean
        near(result.state.params, w)
    ctx, down = population.context(2), algorithm.broadcast(population.context(2), results[-1].state)
    memories = pool.client_states()
    assert memories.keys() == thetas.keys()
    for client, theta in thetas.items():
        task = pool.worker.loader.make_task_without_batches(
            algorithm, ctx, client, down, {}, memories[client]
        )
        near(algorithm.personalize(ctx, task), theta)
        assert np.abs(theta - w).max() > 1e-3  # it is a model of its own, neither w nor the client's w
    task = pool.worker.loader.make_task_without_batches(algorithm, ctx, 0, down, {}, None)
    near(algorithm.personalize(ctx, task), w)


def test_pfedme_counts_its_inner_steps() -> None:
    population = linear(rounds=1)
    (plain,), _ = run(FedAvg(), population)
    (result,), _ = run(PFedMe(inner_steps=3), population)
    assert (result.cost.updates, result.cost.flops) == (3 * plain.cost.updates, 3 * plain.cost.flops)
    assert result.traffic == plain.traffic


def test_pfedme_goes_on_after_a_client_without_examples() -> None:
    population = federation([0, 8, 12], rounds=2)
    results, pool = run(PFedMe(), population)
    assert np.isfinite(results[-1].metrics["train_loss"])
    assert set(pool.client_states()) == {0, 1, 2}


def mixing(
    population: Population, algorithm: FedALA, number: int, client: int, w: Array, own: Array, mix: Array
) -> tuple[Array, int]:
    """The mixing weights after round `number`'s mixing, and how many passes that took."""
    data, held = population.dataset.train, population.partition.client_positions(client)
    count = ceil(algorithm.share * len(held))
    first = int(rng.stream(population.settings.seed, "mixing", number).random() * (len(held) - count + 1))
    rows, losses = held[first : first + count], list[float]()
    fresh = bool((mix == 1).all())
    for _ in range(algorithm.first_passes if fresh else 1):
        for at in range(0, count, 8):
            x, y = data.x[rows[at : at + 8]], data.y[rows[at : at + 8]]
            mixed = own + (w - own) * mix
            loss = mean_loss(mixed, x, y)
            mix = np.clip(mix - algorithm.eta * gradient(mixed, x, y) * (w - own), 0, 1)
        losses.append(loss)
        if len(losses) > 10 and np.std(losses[-10:]) < algorithm.threshold:
            break
    return mix, len(losses)


def test_fedala_learns_how_to_mix() -> None:
    population = linear(rounds=4, cohort_size=5)
    algorithm = FedALA(eta=1.0, threshold=0.0008, first_passes=14)
    results, pool = run(algorithm, population)
    w, own, mixes, passes = start(population), dict[int, Array](), dict[int, Array](), set[int]()
    for number, result in enumerate(results):
        models = []
        for client in result.cohort:
            task, v = Client(population, number, client), w.copy()
            if client in own:
                mix = mixes.get(client, np.ones_like(w))
                mix, took = mixing(population, algorithm, number, client, w, own[client], mix)
                v = own[client] + (w - own[client]) * mix
                passes.add(took)
                mixes[client] = mix
            own[client] = task.sgd(v)
            models.append(own[client])
        w = np.average(models, axis=0, weights=[SIZES[client] for client in result.cohort])
        near(result.state.params, w)
    # First mixings that ended early, such that came to their limit, and later ones of a single pass.
    assert {1, 14} < passes
    memories = pool.client_states()
    for client, mix in mixes.items():
        near(memories[client]["mix"], mix)
        assert ((mix >= 0) & (mix <= 1)).all()
        assert (mix < 1).any()


def test_mixing_weights_of_one_are_fedavg_bit_for_bit() -> None:
    population = federation(SIZES, rounds=3, cohort_size=4)
    plain, _ = run(FedAvg(), population)
    for algorithm in (FedALA(eta=0.0, layers=2), FedALA(layers=0)):
        still, pool = run(algorithm, population)
        assert [r.digest for r in still] == [r.digest for r in plain]
        assert [r.traffic for r in still] == [r.traffic for r in plain]
        assert [r.cost for r in still] == [r.cost for r in plain]
        for memory in pool.client_states().values():
            for value in memory.get("mix", {}).values():
                assert torch.equal(value, torch.ones_like(value))


def test_fedala_mixes_the_last_layers_only() -> None:
    net = make_net("mlp", input_shape=(12,), num_classes=4, hidden=5, layers=3)
    assert FedALA(layers=0).mixed_blocks(net) == ()
    assert FedALA(layers=1).mixed_blocks(net) == ("head",)
    assert FedALA(layers=3).mixed_blocks(net) == ("fc2", "fc3", "head")
    assert not FedALA(layers=4).check_hyperparameters(net, 10)
    (fault,) = FedALA(layers=5).check_hyperparameters(net, 10)
    assert (fault.path, fault.value) == ("layers", 5)

    population = federation(SIZES, rounds=2, cohort_size=7, hidden=5, layers=3)
    algorithm = FedALA(layers=2)
    results, pool = run(algorithm, population)
    upper = {"fc3.0.weight", "fc3.0.bias", "head.weight", "head.bias"}
    ctx, state = population.context(1), results[-1].state
    down, memories = algorithm.broadcast(ctx, state), pool.client_states()
    task = pool.worker.loader.make_task_without_batches(algorithm, ctx, 6, down, {}, memories[6])
    model, mix = algorithm.mix_models(ctx, task)
    assert set(memories[6][PRIVATE_PARAMS]) == set(memories[6]["mix"]) == set(mix) == upper
    for key, value in state.params.items():
        own = memories[6][PRIVATE_PARAMS].get(key)
        mixed = value if own is None else own + (value - own) * mix[key]
        torch.testing.assert_close(model[key], mixed)
        assert own is not None or torch.equal(model[key], value)
    assert results[-1].traffic.up == 7 * 4 * population.nets[0].count_parameters()


def test_mixing_has_the_same_gradients_as_the_whole_model() -> None:
    """What the mixed blocks receive is computed once, by the blocks below them as they came."""
    population = federation(SIZES, hidden=5, layers=2)
    algorithm, net = FedALA(), population.nets[0]
    came, own = net.init(1), {key: value for key, value in net.init(2).items() if key in net.head}
    x, y = torch.from_numpy(population.dataset.train.x[:9].copy()), torch.arange(9) % 4
    ones = {key: torch.ones_like(value) for key, value in own.items()}
    local = replace(population.settings.local, batch_size=9)
    ctx = replace(population.context(0), local=local)
    found = algorithm.learn_mixing_weights(ctx, came, own, ones, Batch(x, y), 1)
    leaf = {key: came[key].clone().requires_grad_() for key in own}
    torch.nn.functional.cross_entropy(net({**came, **leaf}, x), y).backward()
    for key, value in leaf.items():
        assert value.grad is not None
        expected = (1 - value.grad * (came[key] - own[key])).clamp(0, 1)
        torch.testing.assert_close(found[key], expected)
