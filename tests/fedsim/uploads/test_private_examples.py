"""Privacy for examples: identities, a step by hand and by Opacus, Poisson batches, noise, budgets, pools."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base import rng, tree
from fedsim.core import Algorithm, Batch, ClientTask, ClientUpdate, Context, LocalTraining, Reduction
from fedsim.core.batches import Pacing
from fedsim.core.capabilities import CohortSelection
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError
from fedsim.models import make_net
from fedsim.models.net import InputForm, Net, Params
from fedsim.training.private_steps import sum_clipped_gradients
from fedsim.uploads import PrivateExamples
from fedsim.uploads.accounting import compute_epsilon
from fedsim.uploads.private_examples import explain_other_training
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run
from tests.fedsim.stacks import pictures

pytest.importorskip("opacus")

SERVED = [name for name in ALGORITHMS if not explain_other_training(ALGORITHMS[name])]
WIDE = 1e9
ONE_STEP = LocalTraining(epochs=None, steps=1, batch_size=8, lr=0.1)  # type: ignore[arg-type]


def private(base: Algorithm | None = None, **changes: Any) -> PrivateExamples:
    given = {"clip": WIDE, **({} if "epsilon" in changes else {"noise_multiplier": 0.0}), **changes}
    return PrivateExamples(base=base or FedAvg(), **given)


def params(result: Any) -> Any:
    return tree.flatten(result.state.params).numpy()


def test_noise_for_a_budget_depends_on_the_number_of_rounds() -> None:
    assert private(epsilon=1.0).depends_on_num_rounds()
    assert not private(noise_multiplier=1.0).depends_on_num_rounds()


def test_which_algorithms_are_served() -> None:
    assert sorted(SERVED) == [
        *("cd2_pfed", "cfl", "fedadagrad", "fedadam", "fedavg", "fedavgm", "fedbabu", "fedbn", "feddc"),
        *("feddf", "feddyn", "fedensemble", "fedexp", "fedgkd", "fednova", "fedntd", "fedper", "fedprox"),
        *("fedyogi", "layer_schedule", "lg_fedavg", "moon", "scaffold"),
    ]


@pytest.mark.parametrize(
    "name", [n if n in ("fedavg", "scaffold") else pytest.param(n, marks=pytest.mark.slow) for n in SERVED]
)
def test_without_noise_and_with_whole_batches_it_is_the_base_algorithm(name: str) -> None:
    """A batch that holds all examples is its own Poisson sample."""
    local = LocalTraining(epochs=2, batch_size=20, lr=0.1, momentum=0.5, weight_decay=1e-3)
    population = federation([3, 9, 16, 20], rounds=3, local=local)
    plain = run(quick(name), population)
    for one, other in zip(plain, run(private(quick(name)), population), strict=True):
        assert params(other) == pytest.approx(params(one), rel=1e-3, abs=1e-5)
        assert other.traffic == one.traffic
        assert other.metrics["train_loss"] == pytest.approx(one.metrics["train_loss"], rel=1e-4)
        assert other.method["privacy"]["epsilon"] is None


def draw_batch(population: Any, method: PrivateExamples, client: int) -> tuple[Context, ClientTask, Batch]:
    """Return the first private batch of a client, which the tests read past its guard."""
    pool, ctx = SerialPool(method, population), population.context(0)
    broadcast = method.broadcast(ctx, method.init_server_state(ctx))
    task = pool.worker.loader.make_task(method, ctx, client, broadcast, {}, None)
    return ctx, task, task.batches[0]


def list_example_gradients(ctx: Context, model: Params, batch: Batch) -> list[dict[str, Tensor]]:
    """Return the gradients of the examples, by a loop over them."""
    found = []
    for x, y in zip(batch.x, batch.y, strict=True):
        weights = {key: value.clone().requires_grad_() for key, value in model.items()}
        value = torch.nn.functional.cross_entropy(ctx.net(weights, x[None]), y[None])
        found.append(dict(zip(weights, torch.autograd.grad(value, list(weights.values())), strict=True)))
    return found


def test_a_step_in_plain_torch() -> None:
    """Loop over examples: clip each gradient, add them, add the addressed noise, divide by n / m."""
    population, clip, noise = federation([30, 30], rounds=1, local=ONE_STEP), 0.4, 0.3
    method = private(clip=clip, noise_multiplier=noise)
    ctx, task, batch = draw_batch(population, method, 1)
    model = {key: value.clone() for key, value in task.broadcast["params"].items()}
    sums = {key: torch.zeros_like(value) for key, value in model.items()}
    was_clipped = 0
    for slopes in list_example_gradients(ctx, model, batch):
        norm = torch.cat([slope.flatten() for slope in slopes.values()]).norm()
        was_clipped += int(norm > clip)
        sums = {key: sums[key] + slopes[key] * min(1.0, clip / float(norm)) for key in sums}
    assert was_clipped > 0
    seed = rng.torch_seed(ctx.seed, "private steps", 0, 1)
    generator = torch.Generator().manual_seed(seed)
    found = method.train_client(ctx, task).upload["params"]
    for key, value in model.items():
        noisy = sums[key] + noise * clip * torch.randn(value.shape, generator=generator)
        expected = value - 0.1 * noisy / (30 / 4)  # 30 examples, batches of 8: an epoch has 4 steps
        assert torch.allclose(found[key], expected, atol=1e-6)


def test_a_step_of_opacus() -> None:
    """Opacus' optimizer takes the same step from the same batch, without noise."""
    from opacus.optimizers import DPOptimizer

    population, clip = federation([30, 30], rounds=1, local=ONE_STEP), 0.4
    method = private(clip=clip)
    ctx, task, batch = draw_batch(population, method, 0)
    slopes = list_example_gradients(ctx, task.broadcast["params"], batch)
    weights = {key: torch.nn.Parameter(value.clone()) for key, value in task.broadcast["params"].items()}
    optimizer = DPOptimizer(
        torch.optim.SGD(weights.values(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=30 / 4,
    )
    for key, weight in weights.items():
        weight.grad_sample = torch.stack([each[key] for each in slopes])  # type: ignore[attr-defined]
    optimizer.step()
    found = method.train_client(ctx, task).upload["params"]
    for key, weight in weights.items():
        assert torch.allclose(found[key], weight.detach(), atol=1e-6)


def test_batches_are_poisson_samples() -> None:
    population = federation([30], rounds=1, local=LocalTraining(epochs=100, batch_size=8))
    method = private()
    ctx = population.context(0)
    task = SerialPool(method, population).worker.loader.make_task(method, ctx, 0, {"params": {}}, {}, None)
    sizes = np.array([len(rows) for rows in task.batches.rows])  # type: ignore[attr-defined]
    held = np.bincount(np.concatenate(task.batches.rows), minlength=30)  # type: ignore[attr-defined]
    assert len(sizes) == 400
    assert sizes.mean() == pytest.approx(30 / 4, rel=0.05)
    assert sizes.var() == pytest.approx(30 / 4 * 3 / 4, rel=0.25)
    assert sizes.max() > 8
    assert (np.abs(held / 400 - 1 / 4) < 0.09).all()
    one = population.context(0)
    pacing = method.pace_batches(one, np.random.default_rng(0), task._replace(num_examples=5), 3)
    assert isinstance(pacing, Pacing)
    assert pacing.sizes is not None
    assert pacing.sizes.tolist() == [5, 5, 5]


def test_the_noise_has_the_standard_deviation_that_was_asked_for() -> None:
    """Over 2 times 1,700 numbers: noise too small by 5 % would fail."""
    population = federation(
        [16] * 2, rounds=2, hidden=96, local=LocalTraining(steps=1, batch_size=16, lr=1.0)
    )
    clip, noise = 0.5, 20.0
    before, residues = tree.flatten(FedAvg().init_server_state(population.context(0)).params).numpy(), []
    for result in run(private(clip=clip, noise_multiplier=noise), population):
        residues.append(params(result) - before)
        before = params(result)
    # Two clients of 16 examples in one batch each: the mean of two steps of noise z C / 16.
    assert np.std(residues) == pytest.approx(clip * noise / 16 / np.sqrt(2), rel=0.05)


def test_empty_batches_leave_noise_alone() -> None:
    """Of two examples with batches of one, a quarter of the samples is empty; stacks pad them."""
    local = LocalTraining(epochs=6, batch_size=1, lr=0.1)
    population = federation([2, 2, 3], rounds=2, local=local)
    method = private(clip=0.5)
    alone = run(method, population)
    stacked = list(simulate(method, population, StackedPool(method, population, 3)))
    assert stacked[0].engine["stacked"]["together"] == 3
    for one, other in zip(alone, stacked, strict=True):
        assert params(other) == pytest.approx(params(one), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    "changes", [{"noise_multiplier": 0.5}, pytest.param({"epsilon": 5.0}, marks=pytest.mark.slow)]
)
def test_stacks_and_checkpoints_give_the_same_rounds(changes: Any) -> None:
    population = federation(cohort_size=6, rounds=3)
    method = private(quick("scaffold"), clip=0.5, **changes)
    whole = run(method, population)
    stacked = list(simulate(method, population, StackedPool(method, population, 3)))
    assert stacked[0].engine["stacked"]["alone"] == {}
    for one, other in zip(whole, stacked, strict=True):
        assert (one.cohort, one.traffic, one.method["privacy"]) == (
            other.cohort,
            other.traffic,
            other.method["privacy"],
        )
        assert params(other) == pytest.approx(params(one), rel=1e-3, abs=1e-4)


def test_a_checkpoint_continues_the_budget() -> None:
    population = federation(cohort_size=6, rounds=3)
    method = private(clip=0.5, noise_multiplier=0.5)
    whole = run(method, population)
    middle = Checkpoint(round=1, state=whole[0].state, records=(), client_states=())
    rest = simulate(method, population, SerialPool(method, population), resume=middle)
    assert [(each.digest, each.method) for each in rest] == [(e.digest, e.method) for e in whole[1:]]


def test_the_record_has_the_largest_budget_of_all_clients() -> None:
    """By hand: every client's own rate and steps, over the rounds in which it took part."""
    population = federation(cohort_size=4, rounds=3)
    sizes, rounds = [3, 8, 11, 16, 17, 20, 24, 25, 30, 38], [0] * 10
    for result in run(private(noise_multiplier=1.5, clip=1.0, delta=1e-3), population):
        for client in result.cohort:
            rounds[client] += 1
        each = [
            compute_epsilon("rdp", 1.5, 1 / -(-n // 8), times * 2 * -(-n // 8), 1e-3)
            for n, times in zip(sizes, rounds, strict=True)
        ]
        assert result.method["privacy"]["epsilon"] == pytest.approx(max(each), abs=1e-5)


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("prv", marks=pytest.mark.slow)])
def test_each_client_spends_the_target_if_it_takes_part_in_all_rounds(accountant: Any) -> None:
    population = federation([8, 16, 12], rounds=3)
    method = private(epsilon=6.0, clip=1.0, delta=1e-3, accountant=accountant)
    results = run(method, population)
    found = [result.method["privacy"]["epsilon"] for result in results]
    assert found == sorted(found)
    assert 5.98 < found[-1] <= 6.0
    ctx, state = population.context(2), results[-1].state
    for noise, rate, steps in method.list_mechanisms(ctx, state):
        assert 5.95 < compute_epsilon(accountant, noise, rate, steps, 1e-3) <= 6.0
    assert method.find_noise(ctx, 8) > method.find_noise(ctx, 16)


def test_clipping_bounds_what_one_example_changes() -> None:
    """Two federations that differ in one example: the models differ by at most lr C / (n / m)."""
    population = federation([16], rounds=1, local=LocalTraining(steps=1, batch_size=16, lr=1.0))
    method = private(clip=0.25)
    ctx, task, batch = draw_batch(population, method, 0)
    assert len(batch.y) == 16

    @dataclass
    class One:
        batch: Batch

        def __len__(self) -> int:
            return 1

        def __getitem__(self, step: int) -> Batch:
            return self.batch

        def __iter__(self) -> Any:
            return iter([self.batch])

    without = Batch(batch.x[1:], batch.y[1:])
    far = Batch(torch.cat([1e4 * batch.x[:1], batch.x[1:]]), batch.y)
    one, other = (
        tree.flatten(method.train_client(ctx, task._replace(batches=One(each))).upload["params"])
        for each in (without, far)
    )
    assert float((one - other).norm()) <= 0.25 / 16 * 1.001
    assert float((one - other).norm()) > 0.25 / 16 * 0.9


@dataclass(frozen=True, kw_only=True)
class Reader(FedAvg):
    """Reads what it must not."""

    field: str

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        if self.field == "a second loop":
            super().train_client(ctx, task)
        else:
            next(iter(task.batches if self.field == "batches" else task.examples.batches()))
        return super().train_client(ctx, task)


@pytest.mark.parametrize("field", ["examples", "batches", "a second loop"])
def test_an_algorithm_that_reads_examples_fails(field: str) -> None:
    with pytest.raises(FedsimError, match="outside of its private steps"):
        run(private(Reader(field=field)), federation([8, 8], rounds=1))


def test_no_algorithm_sees_labels() -> None:
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Looking(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
            seen.append(bool(task.label_counts.isnan().all() and task.known_counts.isnan().all()))
            return super().loss(ctx, task, params, batch)

    run(private(Looking()), federation([8, 8], rounds=1))
    assert seen
    assert all(seen)


def test_what_does_not_suit() -> None:
    for name in ("fedlc", "ditto", "kdia", "ace_pfl"):
        with pytest.raises(ValueError, match="no private steps"):
            private(quick(name))
    with pytest.raises(ValueError, match="either epsilon or noise_multiplier"):
        PrivateExamples(base=FedAvg(), epsilon=1.0, noise_multiplier=1.0)


class WithLosses(FedAvg):
    """FedAvg whose clients also send their training losses, which have no noise."""

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "loss": Reduction.GATHER}


class WithPrivateSums(WithLosses):
    """The same, and it says that the further upload comes from private steps alone."""

    further_example_use: ClassVar[str] = ""


class WithCohorts(CohortSelection, FedAvg):
    """FedAvg with cohorts of its own, and no further upload."""


class WithLossesAgain(WithPrivateSums):
    """A subclass that adds an upload does not inherit the word of its parent."""

    uploads: ClassVar[Mapping[str, Reduction]] = {**WithPrivateSums.uploads, "norm": Reduction.GATHER}


def test_uploads_of_an_own_algorithm_are_declared() -> None:
    assert explain_other_training(WithCohorts) == ""
    assert "clients also send norm, and nothing says" in explain_other_training(WithLossesAgain)
    assert (
        "clients also send loss, and nothing says that this comes from private steps"
        in explain_other_training(WithLosses)
    )
    assert explain_other_training(WithPrivateSums()) == ""


def test_a_model_with_statistics_is_refused() -> None:
    population = federation([8, 8], rounds=1)
    normed = Net(partial(nn.Sequential, OrderedDict(body=nn.BatchNorm1d(12), head=nn.Linear(12, 4))))
    with pytest.raises(FedsimError, match="statistics of its examples"):
        run(private(), replace(population, nets=(normed,)))


def test_every_algorithm_that_trains_in_another_way_says_so() -> None:
    seams = ("train_client", "train_locally", "collect_update")
    for name in ALGORITHMS:
        kind = ALGORITHMS[name]
        own = [s for s in seams if getattr(kind, s, None) is not getattr(FedAvg, s)]
        assert not own or explain_other_training(kind), name


@pytest.mark.slow
def test_convolutions_take_the_same_private_steps_alone_and_in_stacks() -> None:
    population = pictures(make_net("lenet5", input_shape=(1, 28, 28), num_classes=4), rounds=2)
    method = private(clip=0.5, noise_multiplier=0.1)
    alone = run(method, population)
    stacked = list(simulate(method, population, StackedPool(method, population, 3)))
    assert stacked[0].engine["stacked"]["together"] == 3
    for one, other in zip(alone, stacked, strict=True):
        assert np.allclose(params(other), params(one), rtol=1e-3, atol=1e-4)  # millions of numbers


def test_a_model_that_cannot_be_stacked_goes_example_by_example() -> None:
    """Dropout of rate 0 draws nothing, so that the loop over examples equals `vmap`."""

    class Alone(nn.Dropout):
        unstackable = "a test"

    def build() -> nn.Module:
        hidden = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), Alone(0.0))
        return nn.Sequential(OrderedDict(hidden=hidden, head=nn.Linear(8, 4)))

    def build_stackable() -> nn.Module:
        hidden = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
        return nn.Sequential(OrderedDict(hidden=hidden, head=nn.Linear(8, 4)))

    population, method = federation([9, 17], rounds=2), private(clip=0.5, noise_multiplier=0.1)
    nets = [Net(each, inputs=InputForm((12,))) for each in (build, build_stackable)]
    assert [net.stackable for net in nets] == [False, True]
    one, other = (run(method, replace(population, nets=(net,)))[-1] for net in nets)
    assert params(one) == pytest.approx(params(other), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("at_once", [1, 3])
def test_few_examples_at_once_give_the_same_sums(at_once: int) -> None:
    population = federation([16], rounds=1, local=ONE_STEP)
    ctx, task, batch = draw_batch(population, private(), 0)
    given = dict(task.broadcast["params"])

    def loss(weights: Params, example: Batch) -> Tensor:
        return torch.nn.functional.cross_entropy(ctx.net(weights, example.x), example.y)

    total, sums = sum_clipped_gradients(loss, given, batch, 0.4, at_once=at_once)
    expected_total, expected = sum_clipped_gradients(loss, given, batch, 0.4, at_once=1000)
    assert torch.allclose(total, expected_total)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(sums, expected, strict=True))


def test_an_example_with_an_infinite_gradient_does_not_count() -> None:
    population = federation([16], rounds=1, local=ONE_STEP)
    ctx, task, batch = draw_batch(population, private(), 0)
    given = dict(task.broadcast["params"])

    def loss(weights: Params, example: Batch) -> Tensor:
        return torch.nn.functional.cross_entropy(ctx.net(weights, example.x), example.y)

    others = [0, *range(2, len(batch.y))]
    broken = batch._replace(x=batch.x.index_fill(0, torch.tensor([1]), torch.inf))
    _, sums = sum_clipped_gradients(loss, given, broken, 0.4, at_once=3)
    _, expected = sum_clipped_gradients(loss, given, Batch(batch.x[others], batch.y[others]), 0.4, at_once=3)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(sums, expected, strict=True))
