"""Generators: sizes, where features enter, diversity in NumPy, and that training makes the wanted classes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.similarity.features import compute_mean_cosine, measure_similarity, pool_features
from fedsim.algorithms import KDIA, FedAvg
from fedsim.base import rng, tree
from fedsim.core import Progress
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import one_thread
from fedsim.models import make_net
from fedsim.models.net import Net
from fedsim.techniques.generator_training import (
    GeneratorBatches,
    GeneratorTraining,
    init_generator,
    joint_critic,
    make_joint_classifier,
    train_generator,
)
from fedsim.techniques.generators import (
    Generator,
    find_feature_entry,
    flat_generator,
    make_generator,
    maps_generator,
    pairs_diversity,
    ratio_diversity,
)
from tests.fedsim.federations import federation
from tests.fedsim.methods import QUICK


def test_sizes_are_the_papers() -> None:
    assert Net(partial(maps_generator, 10, (16, 5, 5), 100, "sigmoid")).count_parameters() == 890_724
    assert Net(partial(maps_generator, 100, (16, 5, 5), 100, "sigmoid")).count_parameters() == 1_084_944
    assert Net(partial(flat_generator, 10, 32, 32, 256, "none")).count_parameters() == 19_744
    assert Net(partial(flat_generator, 26, 32, 32, 256, "none")).count_parameters() == 23_840


@pytest.mark.parametrize(
    ("model", "inputs", "block", "shape"),
    [
        ("moon_cnn", (3, 32, 32), "fc1", (16, 5, 5)),
        ("moon_cnn", (1, 28, 28), "fc1", (16, 4, 4)),
        ("fedavg_cnn", (1, 28, 28), "fc1", (64, 4, 4)),
        ("resnet9", (3, 32, 32), "pool", (512, 4, 4)),
        ("mlp", (1, 28, 28), "head", (64,)),
        ("mlp", (12,), "head", (64,)),
    ],
)
def test_features_enter_where_maps_end(model: str, inputs: tuple[int, ...], block: str, shape: Any) -> None:
    net = make_net(model, input_shape=inputs, num_classes=10)
    where = find_feature_entry(net, inputs)
    made = make_generator(net, inputs, 10, noise=6, hidden=16, output="sigmoid")
    features = made(made.net.init(0), torch.randn(3, 6), torch.tensor([0, 9, 4]))
    assert (where.block, where.shape) == (block, shape)
    assert features.shape == (3, *where.shape)
    assert net.run_blocks(net.init(0), features, start=where.block).shape == (3, 10)


def test_diversity_is_numpys() -> None:
    draw = np.random.default_rng(1)
    e, z = draw.normal(size=(6, 4)), draw.normal(size=(6, 3, 2, 2))
    noise, made = torch.from_numpy(e), torch.from_numpy(z)
    ratio = np.abs(z[:3] - z[3:]).mean() / np.abs(e[:3] - e[3:]).mean()
    assert float(ratio_diversity(noise, made)) == pytest.approx(1 / (ratio + 1e-5))
    flat = z.reshape(6, -1)
    terms = [
        -((a - b) ** 2).mean() * np.abs(x - y).mean()
        for a, x in zip(e, flat, strict=True)
        for b, y in zip(e, flat, strict=True)
    ]
    assert float(pairs_diversity(noise, made)) == pytest.approx(np.exp(np.mean(terms)))
    assert float(ratio_diversity(noise, torch.ones(6, 3))) == pytest.approx(1e5)


def test_a_collapsed_generator_pays_more_for_diversity() -> None:
    noise, made = torch.randn(32, 8), torch.randn(32, 5)
    same = made[:1].expand(32, 5)
    for measure in (ratio_diversity, pairs_diversity):
        assert measure(noise, made) < measure(noise, same)


def test_the_joint_judge_weighs_the_clients_logits() -> None:
    net = make_net("moon_cnn", input_shape=(1, 28, 28), num_classes=10)
    where = find_feature_entry(net, (1, 28, 28))
    heads = [tree.select(net.init(seed), where.keys(net)) for seed in (1, 2, 3)]
    features, shares = torch.randn(4, *where.shape), [0.5, 0.3, 0.2]
    expected: Any = sum(
        share * net.run_blocks(head, features, start=where.block)
        for share, head in zip(shares, heads, strict=True)
    )
    found = make_joint_classifier(net, where, heads, shares, torch.device("cpu"))(features)
    torch.testing.assert_close(found, expected)


SCHEDULE = GeneratorTraining(
    epochs=2, batches=30, batch_size=32, lr=0.003, weight_decay=1e-5, diversity="ratio"
)


def learnt(
    schedule: GeneratorTraining,
    generator: Generator,
    judge: Any,
    classes: int,
    state: Any = None,
    number: int = 0,
) -> tuple[Any, list[Progress]]:
    """The state after one training, from an untrained generator or a state on, and what was said of it."""
    said: list[Progress] = []
    stream, cpu = rng.stream(0, "generator", number), torch.device("cpu")
    lessons = GeneratorBatches(schedule.draw_step_labels(stream, classes))
    begun = init_generator(generator, 0) if state is None else state
    steps = train_generator(generator, begun, joint_critic(judge), schedule, lessons, stream, cpu)
    with one_thread():
        while True:
            try:
                said.append(next(steps))
            except StopIteration as end:
                return end.value, said


def images(count: int) -> tuple[Tensor, Tensor]:
    """Noisy 1x16x16 images of four classes, each with its own bright quarter, and their labels."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 4
    x = torch.rand((count, 1, 16, 16), generator=draw)
    for at, label in enumerate(y.tolist()):
        x[at, 0, 8 * (label // 2) :, 8 * (label % 2) :][:8, :8] += 2
    return x, y


def maps_and_heads() -> tuple[Generator, Any]:
    """A generator for a small model of images that was trained, and the joint classifier of three clients."""
    net = make_net("moon_cnn", input_shape=(1, 16, 16), num_classes=4)
    generator = make_generator(net, (1, 16, 16), 4, noise=8, hidden=16, output="sigmoid")
    params, (x, y) = net.init(1), images(64)
    optimiser = torch.optim.Adam([leaf.requires_grad_() for leaf in params.values()], lr=0.003)
    with one_thread():
        for _ in range(60):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(params, x), y).backward()
            optimiser.step()
    head = tree.map(torch.Tensor.detach, tree.select(params, generator.feature_entry.keys(net)))
    draw = torch.Generator().manual_seed(2)
    heads = [
        tree.map(lambda leaf: leaf + 0.01 * torch.randn(leaf.shape, generator=draw), head) for _ in range(3)
    ]
    return generator, make_joint_classifier(
        net, generator.feature_entry, heads, [0.4, 0.4, 0.2], torch.device("cpu")
    )


def judged(generator: Generator, params: Any, judge: Any, classes: int) -> tuple[float, float]:
    """How many of 200 samples are classified as their label, and how far samples of one class are apart."""
    labels = torch.arange(200) % classes
    noise = torch.from_numpy(np.random.default_rng(9).normal(size=(200, generator.noise)).astype(np.float32))
    made = generator(params, noise, labels)
    apart = torch.stack([made[labels == c].std(0).mean() for c in range(classes)]).mean()
    return float((judge(made).argmax(-1) == labels).float().mean()), float(apart)


def test_a_generator_learns_its_classes_and_a_broken_one_fails() -> None:
    """The features of a trained one are taken for their label; an untrained one's by chance, 1 in 4."""
    generator, judge = maps_and_heads()
    state, said = learnt(SCHEDULE, generator, judge, 4)
    before, _ = judged(generator, init_generator(generator, 0)["params"], judge, 4)
    after, apart = judged(generator, state["params"], judge, 4)
    assert before < 0.5 < 0.9 < after
    assert said[-1] == Progress("generator", 50, 60)
    assert int(state["steps"]) == 60
    broken = tree.map(lambda leaf: leaf.clone(), state["params"])
    broken["condition.0.rows"] = broken["condition.0.rows"].mean(0, keepdim=True).expand(4, 4)
    assert judged(generator, broken, judge, 4)[0] < 0.5
    collapsed, _ = learnt(GeneratorTraining(**{**vars(SCHEDULE), "diversity": "none"}), generator, judge, 4)
    assert judged(generator, collapsed["params"], judge, 4)[1] < 0.8 * apart


def flat_and_head() -> tuple[Generator, Any]:
    """A generator of flat features, and a classifier that was not trained."""
    net = make_net("mlp", input_shape=(12,), num_classes=4)
    generator = make_generator(net, (12,), 4, noise=8, hidden=16, output="none")
    heads = [tree.select(net.init(1), net.head)]
    return generator, make_joint_classifier(net, generator.feature_entry, heads, [1.0], torch.device("cpu"))


def test_training_goes_on_from_a_state_and_leaves_it_alone() -> None:
    """Two trainings in a row are one Adam of torch over the steps of both."""
    generator, judge = flat_and_head()
    schedule = GeneratorTraining(
        epochs=1, batches=5, batch_size=16, lr=0.01, weight_decay=0.1, diversity="none"
    )
    first, _ = learnt(schedule, generator, judge, 4)
    kept = tree.map(torch.clone, first)
    second, _ = learnt(schedule, generator, judge, 4, first, number=1)
    for (name, leaf), (_, before) in zip(tree.leaves(first), tree.leaves(kept), strict=True):
        assert torch.equal(leaf, before), name
    assert int(second["steps"]) == 10

    params = generator.net.init(0)
    weights = [params[key].requires_grad_() for key in generator.net.parameters]
    optimiser = torch.optim.Adam(weights, lr=0.01, weight_decay=0.1)
    for number, state in enumerate((first, second)):
        stream = rng.stream(0, "generator", number)
        for labels in schedule.draw_step_labels(stream, 4):
            noise = torch.from_numpy(stream.standard_normal((16, 8), np.float32))
            with generator.net.training_mode():
                made = generator(params, noise, torch.from_numpy(labels))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(judge(made), torch.from_numpy(labels)).backward()
            optimiser.step()
        for key in generator.net.parameters:
            torch.testing.assert_close(state["params"][key], params[key].detach(), rtol=1e-4, atol=1e-6)


def test_similarity_is_the_mean_cosine_of_pooled_features() -> None:
    draw = np.random.default_rng(4)
    a, b = draw.normal(size=(3, 5)), draw.normal(size=(7, 5))
    one, other = (m / np.linalg.norm(m, axis=-1, keepdims=True) for m in (a, b))
    assert compute_mean_cosine(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(
        (one @ other.T).mean()
    )
    maps = draw.normal(size=(2, 3, 4, 4))
    np.testing.assert_allclose(pool_features(torch.from_numpy(maps)).numpy(), maps.mean((2, 3)))


def test_a_generator_of_the_real_features_is_like_those_of_the_same_class() -> None:
    """One that gives each class its mean features, whatever the noise."""
    population = federation()
    method, net = KDIA(**QUICK["kdia"]), population.nets[0]
    params = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))[-1].state.params
    test = population.dataset.test
    x, y = torch.from_numpy(test.x.copy()), torch.from_numpy(test.y.copy())
    means = torch.stack([net.features(params, x[y == c]).mean(0) for c in range(4)])
    ideal = replace(method.generator(population.context(0)), net=_Means(means))  # type: ignore[arg-type]
    found = measure_similarity(population, ideal, {}, params, rng.stream(0, "similarity"))
    assert found["same"] > 0.6
    assert found["same"] > found["other"] + 0.2
    assert list(found["classes"]) == [f"class {c}" for c in range(4)]
    assert np.mean(list(found["classes"].values())) == pytest.approx(found["same"], abs=1e-4)


class _Means:
    """A generator's net that looks the class up."""

    def __init__(self, means: Tensor) -> None:
        self.means = means

    def __call__(self, params: Any, x: Tensor) -> Tensor:
        return self.means[x[:, -1].long()]
