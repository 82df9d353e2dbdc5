"""FedKD and FedAD: what they compute, once more in NumPy; what travels, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAD, FedKD
from fedsim.algorithms.distillation.fedkd import quantise_logits
from fedsim.algorithms.distillation.one_shot import KEPT_TARGETS, select_batch_rows
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base.digest import digest
from fedsim.clients.population import Population
from fedsim.core import Batch, LocalTraining
from fedsim.core.public_set import ROWS
from fedsim.data.dataset import Examples
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.techniques.grad_cam import compute_attention
from tests.fedsim.federations import federation, public_examples
from tests.fedsim.linear_models import SIZES, C, N, linear, logits_of, matrix, run, softmax
from tests.fedsim.replay import Client, start

# FedKD


def test_fedkd_uploads_once_and_everybody_goes_on() -> None:
    """Three rounds alone; then the lesson, of 40 x 4 logits, comes down once to each of the seven."""
    population = linear(rounds=5)
    algorithm = FedKD(local_rounds=3, server_epochs=150, server_batch_size=20, server_lr=0.05, public_lr=0.01)
    results, pool = run(algorithm, population)
    logits, counts = 7 * 4 * N * C, 7 * 4 * C
    assert [r.traffic.up for r in results] == [0, 0, logits + counts, 0, 0]
    assert [r.traffic.down for r in results] == [0, 0, 0, logits, 0]
    assert [("central_loss" in r.method) for r in results] == [False, False, True, True, True]
    x, models = public_examples().x, [start(population) for _ in SIZES]
    held = np.array(
        [
            np.bincount(population.dataset.train.y[population.partition.client_positions(k)], minlength=C)
            for k in range(7)
        ]
    )
    for number in range(3):
        models = [Client(population, number, client).sgd(models[client]) for client in range(7)]
    said, weights = np.stack([logits_of(m, x) for m in models]), held / held.sum(0)
    taught = (weights[:, None] * said).sum(0)
    np.testing.assert_allclose(results[2].state.lesson["logits"].numpy(), taught, rtol=1e-4, atol=1e-5)
    assert results[2].metrics["global_accuracy"] > results[1].metrics["global_accuracy"]
    central = logits_of(matrix(results[2].state.params), x)
    assert (central.argmax(1) == taught.argmax(1)).mean() > 0.9
    assert matrix(results[1].state.params) == pytest.approx(start(population))
    for number in (3, 4):
        for client in range(7):
            batches = (
                population.context(0)
                .require_public_set()
                .shuffle_batches(population.settings.seed, number, epochs=1, batch_size=128)
            )
            (rows,) = (batch.noise[ROWS].numpy() for batch in batches)
            inputs = np.hstack([x[rows], np.ones((N, 1))])
            slope = np.sign(inputs @ models[client].T - taught[rows]).T @ inputs / (N * C)
            models[client] = Client(population, number, client).sgd(models[client] - 0.01 * slope)
    for client, memory in pool.client_states().items():
        np.testing.assert_allclose(matrix(memory[PRIVATE_PARAMS]), models[client], rtol=1e-3, atol=1e-4)


def test_fedkd_after_the_upload_without_private_training() -> None:
    population = linear(rounds=2)
    algorithm = FedKD(private=False, public_lr=0.05, server_epochs=2)
    results, pool = run(algorithm, population)
    lesson = results[0].state.lesson["logits"]
    far = []
    for client, memory in pool.client_states().items():
        assert torch.equal(memory[KEPT_TARGETS]["logits"], lesson)
        said = (
            population.context(0)
            .require_public_set()
            .predict_examples(lambda x, m=memory: population.nets[0](m[PRIVATE_PARAMS], x))
        )
        before = logits_of(Client(population, 0, client).sgd(start(population)), public_examples().x)
        far.append((float((said - lesson).abs().mean()), np.abs(before - lesson.numpy()).mean()))
    assert all(after < before for after, before in far)
    assert (
        results[1].cost.updates == 7 * population.nets[0].count_parameters()
    )  # a step on the public set each


def test_fedkd_learns_from_the_public_set_at_a_constant_rate() -> None:
    """The rate of its own steps may fall within a round; that of `public_lr` does not."""
    population, algorithm = linear(), FedKD(public_lr=0.05, public_batch_size=10)
    loader, ctx = SerialPool(algorithm, population).worker.loader, population.context(0)
    task = loader.make_task_without_batches(algorithm, ctx, 0, {}, {}, {})
    targets = {"logits": torch.arange(float(N * C)).view(N, C)}
    falling = replace(ctx, local=replace(ctx.local, lr_alpha=2.0))
    one, other = (
        algorithm.distil_soft_targets(each, task, ctx.cached_init_params(), targets, 0)[0]
        for each in (ctx, falling)
    )
    assert digest(one) == digest(other) != digest(ctx.cached_init_params())


def test_fedkd_by_divergence() -> None:
    population = linear()
    public, net = population.context(0).require_public_set(), population.nets[0]
    batch, params = public.make_batch(torch.arange(6)), net.init(9)
    taught = torch.randn(N, C, generator=torch.Generator().manual_seed(1))
    algorithm = FedKD(distance_by="kl", temperature=3.0)
    found = algorithm.distillation_loss(
        population.context(0), params, batch, select_batch_rows({"logits": taught}, batch)
    )
    p, q = (
        softmax(taught[:6].double().numpy() / 3),
        softmax(logits_of(matrix(params), public.x[:6].numpy()) / 3),
    )
    assert float(found) == pytest.approx(9 * (p * np.log(p / q)).sum(1).mean(), rel=1e-5)


def test_what_protects_the_upload() -> None:
    values = quantise_logits(torch.linspace(-3, 7, 1000), 11)
    torch.testing.assert_close(values.unique(), torch.arange(-3.0, 8.0))
    population = linear(rounds=2)
    noisy, levels = FedKD(laplace=1.0, server_epochs=1), FedKD(levels=100, server_epochs=1)
    (plain, _), (loud, _), (few, _) = (run(m, population)[0] for m in (FedKD(server_epochs=1), noisy, levels))
    apart = loud.state.lesson["logits"] - plain.state.lesson["logits"]
    assert 0.2 < float(apart.abs().mean()) < 1.2  # means of Laplace(1), whose mean size is 1
    assert float((few.state.lesson["logits"] - plain.state.lesson["logits"]).abs().max()) < 0.2
    assert few.traffic.up == 7 * (N * C + 2 * 4 + 4 * C)  # a byte each, two bounds, the counts


def test_logits_may_count_the_same_whoever_holds_a_class() -> None:
    logits, counts = (
        [torch.zeros(2, 2), torch.ones(2, 2)],
        [torch.tensor([3.0, 0.0]), torch.tensor([1.0, 2.0])],
    )
    said = [{"logits": one, "counts": other} for one, other in zip(logits, counts, strict=True)]
    assert FedKD().ensemble_logits(said)[0].tolist() == [0.25, 1.0]
    assert FedKD(weights="even").ensemble_logits(said)[0].tolist() == [0.5, 0.5]


def test_an_upload_that_never_comes_is_refused() -> None:
    (fault,) = FedKD(local_rounds=9).check_hyperparameters(linear().nets[0], 8)
    assert (fault.path, fault.value) == ("local_rounds", 9)
    assert not FedKD(local_rounds=8).check_hyperparameters(linear().nets[0], 8)
    (fault,) = FedKD(levels=1).check_hyperparameters(linear().nets[0], 8)
    assert (fault.path, fault.value) == ("levels", 1)


# FedAD


def images(rounds: int = 4) -> Population:
    """Ten 16x16 images of two classes for each of three clients, and six public ones."""
    population = federation([10, 10, 10], rounds=rounds, local=LocalTraining(epochs=2, batch_size=5, lr=0.05))
    generator = np.random.default_rng(2)
    y = np.arange(46) % 2
    x = generator.normal(size=(46, 1, 16, 16)).astype(np.float32)
    x[y == 1, :, 8:, 8:] += 2
    data = replace(
        population.dataset,
        train=Examples(x[:30], y[:30]),
        test=Examples(x[30:40], y[30:40]),
        num_classes=2,
        input_shape=(1, 16, 16),
        classes=("a", "b"),
    )
    net = make_net("mel_cnn", input_shape=(1, 16, 16), num_classes=2, width=2)
    return replace(population, dataset=data, nets=(net,), public=Examples(x[40:], y[40:]))


def test_attention_is_grad_cam() -> None:
    """The head is linear on the mean over h x w places, so d score / d A_k is weight[y, k] / (h w)."""
    population = images()
    net, params = population.nets[0], population.nets[0].init(4)
    public = population.context(0).require_public_set()
    batch = public.make_batch(torch.arange(6))
    maps = net.run_blocks(params, batch.x, stop="pool").detach().numpy()
    assert maps.shape == (6, 8, 2, 2)
    slopes = params["head.weight"].numpy()[batch.y] / (maps.shape[2] * maps.shape[3])
    cam = np.maximum(np.einsum("bk,bkhw->bhw", slopes, maps), 0)
    found = compute_attention(net, (1, 16, 16), params, batch.x, batch.y, 2)
    torch.testing.assert_close(found.logits, net(params, batch.x))
    flat = cam.reshape(6, 4)
    assert (flat > 0).any()
    scaled = flat / np.maximum(flat.max(1, keepdims=True), 1e-12)
    np.testing.assert_allclose(found.attention.numpy(), scaled, rtol=1e-4, atol=1e-6)


def test_fedad_descends_through_the_attention() -> None:
    """The loss in NumPy from logits and maps; and its gradient against a difference quotient, in float64."""
    net = make_net("fedgen_cnn", input_shape=(1, 16, 16), num_classes=3)
    algorithm = FedAD(lambda_att=2.0, map_size=2)
    ctx = replace(images().context(0), nets=(net,), input_shape=(1, 16, 16))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 16, 16, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 1])
    lesson = {
        "logits": torch.randn(4, 3, generator=generator, dtype=torch.float64),
        "lower": torch.full((4, 4), 0.6, dtype=torch.float64),
        "upper": torch.full((4, 4), 0.8, dtype=torch.float64),
    }
    params = {key: value.double() for key, value in net.init(1).items()}
    seen = compute_attention(net, (1, 16, 16), params, x, y, 2)
    p, q = softmax(lesson["logits"].numpy()), softmax(seen.logits.numpy())
    a = seen.attention.numpy()
    assert ((a > 0).any(1) & (a.max(1) > 0.999)).any()
    outside = np.maximum(0.6 - a, 0) + np.maximum(a - 0.8, 0)
    expected = (p * np.log(p / q)).sum(1).mean() + 2 * outside.mean()
    key = net.parameters[0]
    weight = params[key].clone().requires_grad_()
    value = algorithm.distillation_loss(ctx, {**params, key: weight}, Batch(x, y), lesson)
    assert value.item() == pytest.approx(expected)
    (slope,) = torch.autograd.grad(value, weight)
    alone = replace(algorithm, lambda_att=0.0).distillation_loss(
        ctx, {**params, key: weight}, Batch(x, y), lesson
    )
    assert not torch.allclose(slope, torch.autograd.grad(alone, weight)[0])
    step = torch.zeros_like(weight)
    step.view(-1)[3] = 1e-6
    ends = [
        algorithm.distillation_loss(
            ctx, {**params, key: (weight + s * step).detach()}, Batch(x, y), lesson
        ).item()
        for s in (-1, 1)
    ]
    assert (ends[1] - ends[0]) / 2e-6 == pytest.approx(float(slope.view(-1)[3]), rel=1e-3, abs=1e-6)


def test_fedad_bounds_and_bytes() -> None:
    population = images()
    algorithm = FedAD(map_size=2, server_epochs=3)
    pool = SerialPool(algorithm, population)
    results = list(simulate(algorithm, population, pool, personal="always"))
    assert [r.traffic.up for r in results] == [0, 3 * 4 * (6 * (2 + 4) + 2), 0, 0]
    assert [r.traffic.down for r in results] == [0, 0, 3 * 4 * 6 * (2 + 2 * 4), 0]
    lesson = results[-1].state.lesson
    assert (lesson["lower"] <= lesson["upper"]).all()
    ctx = population.context(1)
    said = [
        {"logits": torch.zeros(1, 2), "attention": torch.tensor([a]), "counts": torch.ones(2)}
        for a in ([0.2, 1.0], [0.5, 0.1])
    ]
    found = algorithm.combine_predictions(ctx, said)
    torch.testing.assert_close(found["lower"], torch.tensor([[0.2, 0.1]]))
    torch.testing.assert_close(found["upper"], torch.tensor([[0.5, 1.0]]))
    assert all("personal_accuracy" in r.metrics and "global_accuracy" in r.metrics for r in results)


def test_looks_are_stacked() -> None:
    population, algorithm = images(rounds=2), FedAD(map_size=2, server_epochs=1)
    lenet = make_net("lenet5", input_shape=(1, 16, 16), num_classes=2)
    population = replace(population, nets=(lenet,))
    states, stacked = [], {}
    for pool in (SerialPool(algorithm, population), StackedPool(algorithm, population, 3)):
        (*_, last) = simulate(algorithm, population, pool, personal="never")
        states.append(pool.client_states()[2][PRIVATE_PARAMS])
        stacked = last.engine.get("stacked", {})
    assert stacked == {"together": 6, "alone": {}}  # the lesson and the local training of each of three
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-4, atol=1e-5)


def test_fedad_is_of_images() -> None:
    net = linear().nets[0]
    (fault,) = FedAD().check_hyperparameters(net, 10)
    assert fault.path == "lambda_att"
    assert not FedAD(lambda_att=0.0).check_hyperparameters(net, 10)
    assert not FedAD().check_hyperparameters(images().nets[0], 10)
