"""FedGen: identities, both of its losses in NumPy for one batch, the label census, its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedGen
from fedsim.algorithms.generators.fedgen import update_label_chances
from fedsim.base import tree
from fedsim.base.costs import Traffic
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context, LocalTraining, ReducedUpdates, RunSettings
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.techniques.generators import draw_labels, make_generator
from tests.fedsim.federations import federation, partition
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import MOMENTUM, QUICK, run, same_models

LIGHT = QUICK["fedgen"]


def digits(model: str = "fedgen_cnn", classes: int = 10, **local: Any) -> Population:
    """Four clients with 1x28x28 noise, two in a round."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (48, 1, 28, 28), dtype=np.uint8), np.arange(48) % classes
    data = Dataset(
        name="noise",
        train=Examples(x[:40], y[:40]),
        test=Examples(x[40:], y[40:]),
        num_classes=classes,
        input_shape=(1, 28, 28),
        classes=tuple(map(str, range(classes))),
    )
    return Population(
        dataset=data,
        partition=partition([10, 10, 10, 10]),
        nets=(make_net(model, input_shape=(1, 28, 28), num_classes=classes),),
        settings=RunSettings(
            seed=1,
            rounds=2,
            cohort_size=2,
            local=LocalTraining(**{"steps": 2, "batch_size": 8, "lr": 0.01, **local}),
        ),
    )


def test_without_its_terms_it_is_fedavg_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=4, rounds=3)
    assert same_models(FedAvg(), FedGen(alpha=0.0, beta=0.0), population)
    one = federation(local=MOMENTUM, cohort_size=4, rounds=1)
    assert same_models(FedAvg(), FedGen(**LIGHT), one)


def test_each_term_alone_makes_a_difference() -> None:
    population = federation(cohort_size=4, rounds=2)
    methods = [FedAvg(), FedGen(**LIGHT), FedGen(alpha=0.0, **LIGHT), FedGen(beta=0.0, **LIGHT)]
    ends = [run(method, population)[-1].state.params["head.weight"] for method in methods]
    for at, one in enumerate(ends):
        assert not any(torch.equal(one, other) for other in ends[:at])


def test_bytes_on_the_papers_cnn() -> None:
    """26,434 + 19,744 + 10 floats down, 26,434 + 10 up; besides, 44 and 512 running statistics."""
    first, second = (result.traffic for result in run(FedGen(generator_steps=2), digits()))
    model, generator = 4 * (26_434 + 44), 4 * (19_744 + 512)
    assert (first.down, first.up) == (2 * model, 2 * (model + 40))
    assert (second.down, second.up) == (2 * (model + generator + 40), 2 * (model + 40))
    assert second.by_payload == {"params": 4 * model, "generator": 2 * generator, "labels": 4 * 40}


def test_a_scalar_more_makes_it_as_large_as_fedcls() -> None:
    for classes, wanted in ((10, 20_000), (26, 24_096)):
        net = make_net("fedgen_cnn", input_shape=(1, 28, 28), num_classes=classes)
        sizes: Any = {"noise": 32, "hidden": 256, "output": "none", "at": "head"}
        generator = make_generator(net, (1, 28, 28), classes, **sizes, scalars=1)
        assert generator.net.count_parameters() == wanted
        params, noise, labels = generator.net.init(0), torch.randn(3, 32), torch.tensor([0, 5, 9])
        easy, hard = (generator(params, noise, labels, torch.full((3, 1), v)) for v in (-1.0, 1.0))
        assert easy.shape == (3, 32)
        assert not torch.equal(easy, hard)


def arrived(method: FedGen, population: Population, client: int) -> tuple[Context, ClientTask]:
    """A client's visit in round 5, of a generator and chances that leave the first class out."""
    ctx = population.context(5)
    state = method.init_server_state(ctx)
    broadcast = {**method.broadcast(ctx, state), "generator": method.generator(ctx).net.init(3)}
    broadcast["labels"] = {"chances": torch.tensor([0.0, 0.5, 0.25, 0.25])}
    return ctx, SerialPool(method, population).worker.loader.make_task(
        method, ctx, client, broadcast, {}, None
    )


@pytest.mark.parametrize("samples", [8, 12, None])
@pytest.mark.parametrize("client", [0, 5], ids=["three examples", "twenty"])
def test_a_local_loss_is_numpys(client: int, samples: int | None) -> None:
    """Generated features count by how many they are for each example of a whole batch, which has 8."""
    method = FedGen(alpha=3.0, beta=0.7, decay=0.9, **{**LIGHT, "samples": samples})
    ctx, task = arrived(method, federation(), client)
    net, batch, params = ctx.net, task.batches[0], ctx.net.init(4)
    count = min(8, task.num_examples)
    assert len(batch.y) == count
    weights = {key: value.double().numpy() for key, value in task.broadcast["generator"].items()}

    def made(noise: Any, labels: Any) -> Any:
        x = np.concatenate([np.eye(4)[labels], noise], 1)
        hidden = x @ weights["hidden.0.weight"].T + weights["hidden.0.bias"]
        scale = weights["hidden.1.weight"] / np.sqrt(weights["hidden.1.running_var"] + 1e-5)
        hidden = (hidden - weights["hidden.1.running_mean"]) * scale + weights["hidden.1.bias"]
        features = np.maximum(hidden, 0) @ weights["output.0.weight"].T + weights["output.0.bias"]
        return features @ params["head.weight"].double().numpy().T + params["head.bias"].double().numpy()

    def entropy(logits: Any, wanted: Any) -> float:
        return float(-np.log(softmax(logits)[np.arange(len(wanted)), wanted]).mean())

    uniform, y = batch.noise["chance"].numpy(), batch.y.numpy()
    assert len(uniform) == (samples or 8)
    labels = np.searchsorted([0.0, 0.5, 0.75, 1.0], uniform, side="right")
    logits = net(params, batch.x).double().numpy()
    p, q = softmax(made(batch.noise["own"][:count].numpy(), y)), softmax(logits)
    expected = (
        entropy(logits, y)
        + 3.0 * 0.9**5 * (len(uniform) / 8) * entropy(made(batch.noise["noise"].numpy(), labels), labels)
        + 0.7 * 0.9**5 * (p * np.log(p / q)).sum(-1).mean()
    )
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)


def reduced(ctx: Context, counts: list[list[int]], seeds: tuple[int, ...]) -> ReducedUpdates:
    """What came of clients with these label counts, whose heads are fresh ones."""
    head = ctx.net.head
    return ReducedUpdates(
        payloads={
            "labels": [{"counts": torch.tensor(row, dtype=torch.int32)} for row in counts],
            "heads": [tree.select(ctx.net.init(seed), head) for seed in seeds],
        },
        clients=tuple(range(len(counts))),
        weights=(1.0,) * len(counts),
        num_examples=tuple(map(sum, counts)),
        metrics={},
        traffic=Traffic(),
    )


def test_the_generators_loss_is_numpys() -> None:
    """Each head is asked for a label by its client's share of it; one without examples is not asked."""
    method, ctx = FedGen(**LIGHT), federation().context(2)
    counts = [[3, 0, 1, 0], [1, 4, 3, 0], [0, 0, 0, 0]]
    came = reduced(ctx, counts, (1, 2, 3))
    made, labels = torch.randn(6, 64), torch.tensor([0, 1, 2, 2, 1, 0])
    expected = 0.0
    for row, head in zip(np.array(counts), came["heads"], strict=True):
        logits = ctx.net.classify(head, made).double().numpy()
        entropy = -np.log(softmax(logits)[np.arange(6), labels.numpy()])
        expected += ((row / np.maximum(np.sum(counts, 0), 1))[labels.numpy()] * entropy).mean()
    found = method.critic(ctx, method.init_server_state(ctx), came, torch.device("cpu"))(made, labels)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_server_asks_for_labels_that_the_cohort_holds_and_clients_for_all_that_were_met() -> None:
    method, ctx = FedGen(**LIGHT), federation().context(0)
    first, then = reduced(ctx, [[3, 0, 1, 0]], (1,)), reduced(ctx, [[0, 0, 2, 1]], (2,))
    state: Any = method.init_server_state(ctx)
    third = 1 / 3
    for came, held, chances in (
        (first, {0, 2}, [1 / 2, 0, 1 / 2, 0]),
        (then, {2, 3}, [third, 0, third, third]),
    ):
        lessons = method.generator_batches(ctx, state, came, np.random.default_rng(0))
        assert {int(label) for batch in lessons.labels for label in batch} == held
        counts = torch.stack([each["counts"] for each in came["labels"]]).double()
        state = type(state)(
            params=state.params, labels=update_label_chances(state.labels, counts), generator=state.generator
        )
        assert state.labels.tolist() == pytest.approx(chances)


def test_a_label_without_a_chance_is_never_drawn() -> None:
    uniform = torch.cat([torch.linspace(0, 1, 1000)[:-1], torch.tensor([1 - 2**-24])])
    for chances in ([0.0, 0.3, 0.0, 0.7, 0.0], [0.1] * 10, [0.0, 1.0]):
        labels = draw_labels(torch.tensor(chances), uniform)
        shares = np.bincount(labels.numpy(), minlength=len(chances)) / len(uniform)
        np.testing.assert_allclose(shares, chances, atol=0.002)
        assert set(labels.tolist()) == {at for at, chance in enumerate(chances) if chance}


def test_strengths_fall_to_a_ten_thousandth() -> None:
    method, population = FedGen(alpha=10.0, decay=0.98), federation()
    found = [method.strength_in_round(population.context(t), method.alpha) for t in (0, 1, 100, 1000)]
    assert found == pytest.approx([10, 9.8, 10 * 0.98**100, 1e-4])
    assert method.strength_in_round(population.context(9), 0.0) == 0.0


def test_the_generator_learns_what_the_heads_say_and_a_client_without_examples_harms_nobody() -> None:
    population = federation([0, 12, 30], rounds=4)
    method = FedGen(alpha=0.1, beta=0.1, **{**LIGHT, "generator_lr": 0.01, "generator_gamma": 1.0})
    results = run(method, population)
    losses = [result.method["generator_loss"] for result in results]
    assert losses[-1] < losses[0]
    assert int(results[-1].state.generator["steps"]) == 4 * LIGHT["generator_steps"]
    assert all(torch.isfinite(value).all() for value in results[-1].state.params.values())


def test_labels_are_even_as_long_as_nobody_has_brought_any() -> None:
    """The first cohort holds nothing: in the second round labels of every class are drawn, then those met."""
    population = federation([0, 20, 20], cohort_size=1, seed=1, rounds=2)
    method = FedGen(**QUICK["fedgen"])
    first, second = simulate(method, population, SerialPool(method, population))
    assert first.cohort == (0,)
    assert not first.state.labels.any()
    ctx = population.context(1)
    chances = method.broadcast(ctx, first.state)["labels"]["chances"]
    assert set(draw_labels(chances, torch.linspace(0, 0.999, 100)).tolist()) == {0, 1, 2, 3}
    held = population.dataset.train.y[population.partition.client_positions(second.cohort[0])]
    assert set(second.state.labels.nonzero().flatten().tolist()) == set(held.tolist())
