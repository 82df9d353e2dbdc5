"""Optimizers, clipping, smoothing and schedules: once more in plain torch, and in stacks as one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler as schedulers

from fedsim.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedsim.clients.population import Population
from fedsim.core import Batch, LocalTraining
from fedsim.core.optimizers import SGD, Adagrad, Adam, AdamW, LocalOptimizer, RMSprop
from fedsim.core.schedules import CONSTANT, ConstantSchedule, CosineSchedule, Schedule, StepSchedule
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.errors import SpecError
from fedsim.training.local_loop import run_sgd
from fedsim.training.losses import cross_entropy
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run
from tests.fedsim.stacks import run as run_in
from tests.fedsim.stacks import same_as_one_by_one, small

LOCAL = LocalTraining(epochs=3, batch_size=8, lr=0.01, weight_decay=0.05)

OPTIMIZERS: dict[str, tuple[LocalOptimizer, float, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (SGD(), 0.9, partial(torch.optim.SGD, momentum=0.9)),
    "nesterov": (SGD(nesterov=True), 0.9, partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
    "adam": (Adam(), 0.0, torch.optim.Adam),
    "amsgrad": (
        Adam(betas=(0.8, 0.99), eps=1e-6, amsgrad=True),
        0.0,
        partial(torch.optim.Adam, betas=(0.8, 0.99), eps=1e-6, amsgrad=True),
    ),
    "whole betas": (Adam(betas=(0, 0.99)), 0.0, partial(torch.optim.Adam, betas=(0.0, 0.99))),
    "adamw": (AdamW(), 0.0, torch.optim.AdamW),
    "rmsprop": (RMSprop(alpha=0.9), 0.0, partial(torch.optim.RMSprop, alpha=0.9)),
    "centred": (RMSprop(centered=True), 0.5, partial(torch.optim.RMSprop, centered=True, momentum=0.5)),
    "adagrad": (
        Adagrad(initial_accumulator_value=0.1),
        0.0,
        partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    ),
}
"""Optimizers with their momentum, and the same of torch."""

SCHEDULE = CosineSchedule(over="steps", warmup=2, length=7, final=0.1)


@pytest.fixture
def double() -> Iterator[None]:
    """All tensors of a test are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def with_optimizer(name: str, **more: Any) -> LocalTraining:
    optimizer, momentum, _ = OPTIMIZERS[name]
    return replace(LOCAL, optimizer=optimizer, momentum=momentum, **more)


def train_in_torch(
    population: Population, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], **settings: Any
) -> dict[str, torch.Tensor]:
    """The first round of client 0, written as a training loop of torch."""
    ctx, pool = population.context(0), SerialPool(FedAvg(), population)
    params = {key: value.clone().requires_grad_() for key, value in ctx.init_params().items()}
    optimizer, weights = make(list(params.values())), list(params.values())
    rates = schedulers.LambdaLR(optimizer, settings.get("rate", lambda step: 1.0))
    for batch in pool.worker.loader.make_batches(FedAvg(), ctx, 0):
        optimizer.zero_grad()
        loss = F.cross_entropy(
            ctx.net(params, batch.x), batch.y, label_smoothing=settings.get("smoothing", 0.0)
        )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, settings.get("norm", float("inf")))
        optimizer.step()
        rates.step()
    return {key: value.detach() for key, value in params.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_client_trains_as_in_plain_torch_to_the_bit(name: str) -> None:
    population = federation([20], local=with_optimizer(name), rounds=1)
    make = OPTIMIZERS[name][2]
    expected = train_in_torch(population, lambda weights: make(weights, lr=0.01, weight_decay=0.05))
    (found,) = run(FedAvg(), population)
    assert all(torch.equal(found.state.params[key], expected[key]) for key in expected)


def test_adamw_with_clipping_smoothing_and_a_schedule_as_in_plain_torch() -> None:
    local = replace(LOCAL, optimizer=AdamW(), clip_norm=0.5, label_smoothing=0.2, schedule=SCHEDULE)
    population = federation([20], local=local, rounds=1)
    expected = train_in_torch(
        population,
        lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.05),
        norm=0.5,
        smoothing=0.2,
        rate=lambda step: SCHEDULE.factor_at(step, 0),
    )
    (found,) = run(FedAvg(), population)
    for key, value in expected.items():
        torch.testing.assert_close(found.state.params[key], value, rtol=1e-6, atol=1e-7)


def test_the_state_of_an_optimizer_starts_anew_in_each_round() -> None:
    """Two rounds of one client are two loops of torch, each with a new optimizer."""
    population = federation([20], local=with_optimizer("adam"), rounds=2)
    first, second = run(FedAvg(), population)
    ctx, pool = population.context(1), SerialPool(FedAvg(), population)
    task = pool.worker.loader.make_task(FedAvg(), ctx, 0, {}, {}, {})
    again = run_sgd(
        ctx, task, first.state.params, lambda params, batch: cross_entropy(ctx.net(params, batch.x), batch)
    )
    assert all(torch.equal(again.params[key], value) for key, value in second.state.params.items())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_clients_end_where_they_end_one_by_one(name: str) -> None:
    """With unequal numbers of steps, padded batches, and a norm that most gradients exceed."""
    local = with_optimizer(name, clip_norm=0.3, label_smoothing=0.1, schedule=SCHEDULE)
    same_as_one_by_one(FedAvg(), 4, torch.float64, small(torch.float64, local=local))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "name",
    ["per_fedavg", "fedrep", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pfedme", "ace_pfl"))],
)
def test_methods_with_loops_of_their_own_take_adamw(name: str) -> None:
    local = with_optimizer("adamw", clip_norm=0.3, label_smoothing=0.1)
    same_as_one_by_one(quick(name), 4, torch.float64, small(torch.float64, local=local))


def test_only_sgd_is_replayed_as_a_graph() -> None:
    def refuse(work: Callable[[], None]) -> Any:
        raise AssertionError("recorded")

    local = replace(with_optimizer("adam"), epochs=9, batch_size=3)
    population = small(rounds=1, local=local)
    last, _ = run_in(FedAvg(), population, StackedPool(FedAvg(), population, 4, recorder=refuse))
    assert last.engine["stacked"] == {"together": 7, "alone": {}}


# clipping


def test_a_norm_that_no_gradient_exceeds_changes_no_bit() -> None:
    plain = run(FedAvg(), federation(local=LOCAL))
    wide = run(FedAvg(), federation(local=replace(LOCAL, clip_norm=1e6)))
    tight = run(FedAvg(), federation(local=replace(LOCAL, clip_norm=0.1)))
    assert [each.digest for each in wide] == [each.digest for each in plain]
    assert tight[-1].digest != plain[-1].digest


def test_a_step_of_sgd_is_no_longer_than_the_norm_allows() -> None:
    local = LocalTraining(steps=1, batch_size=8, lr=0.5, clip_norm=0.01)
    population = federation([20], local=local, rounds=1)
    (found,) = run(FedAvg(), population)
    first = population.context(0).init_params()
    moved = torch.cat([(first[key] - value).flatten() for key, value in found.state.params.items()])
    assert float(moved.norm()) == pytest.approx(0.5 * 0.01, rel=1e-3)


def test_controls_of_scaffold_are_means_of_clipped_gradients() -> None:
    """So that none is longer than the norm, with Nesterov's momentum as well."""
    sgd = SGD(nesterov=True)
    local = LocalTraining(epochs=2, batch_size=8, lr=0.05, momentum=0.9, optimizer=sgd, clip_norm=0.05)
    population = federation(local=local, rounds=3)
    pool = SerialPool(Scaffold(), population)
    run_in(Scaffold(), population, pool)
    for state in pool.client_states().values():
        control = torch.cat([value.flatten() for value in state["control"].values()])
        assert 0 < float(control.norm()) <= 0.05 * 1.001


# label smoothing


def test_smoothing_is_torchs_and_never_in_scores() -> None:
    logits, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    batch = Batch(logits, y, label_smoothing=0.3)
    expected = F.cross_entropy(logits, y, label_smoothing=0.3)
    torch.testing.assert_close(cross_entropy(logits, batch), expected)
    padded = Batch(logits, y, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]), label_smoothing=0.3)
    torch.testing.assert_close(
        cross_entropy(logits, padded), F.cross_entropy(logits[:3], y[:3], label_smoothing=0.3)
    )
    still = LocalTraining(epochs=1, batch_size=8, lr=1e-12)
    plain, smooth = (
        run(FedAvg(), federation(local=replace(still, label_smoothing=share)))[-1].metrics
        for share in (0.0, 0.3)
    )
    assert smooth["global_loss"] == pytest.approx(plain["global_loss"], rel=1e-6)
    assert abs(smooth["train_loss"] - plain["train_loss"]) > 1e-3


def test_yes_and_no_are_smoothed_towards_a_half() -> None:
    logits, y = torch.randn(4, 2), torch.tensor([[0.0, 1.0], [1.0, torch.nan], [1.0, 1.0], [0.0, 0.0]])
    known = ~y.isnan()
    expected = F.binary_cross_entropy_with_logits(logits[known], (y * 0.8 + 0.1)[known])
    torch.testing.assert_close(cross_entropy(logits, Batch(logits, y, label_smoothing=0.2)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_smooths_its_labels(name: str) -> None:
    plain, smooth = (
        run(quick(name), federation([12, 20], rounds=1, local=replace(LOCAL, label_smoothing=share)))
        for share in (0.0, 0.3)
    )
    assert smooth[-1].metrics["train_loss"] != plain[-1].metrics["train_loss"]


# schedules


def in_torch(rounds: int, warmup: int, make: Callable[[Any], Any]) -> list[float]:
    """The factors of a scheduler of torch behind a linear warm-up."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    if warmup:
        rise = schedulers.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        scheduler = schedulers.SequentialLR(optimizer, [rise, scheduler], milestones=[warmup])
    found = []
    for _ in range(rounds):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (ConstantSchedule(), lambda optimizer: schedulers.LambdaLR(optimizer, lambda _: 1.0)),
        (StepSchedule(every=4, gamma=0.5), lambda optimizer: schedulers.StepLR(optimizer, 4, 0.5)),
    ],
    ids=["constant", "step"],
)
def test_schedules_are_those_of_torch(schedule: Schedule, make: Any, warmup: int) -> None:
    found = [replace(schedule, warmup=warmup).factor_at(round, 20) for round in range(20)]
    assert found == pytest.approx(in_torch(20, warmup, make), rel=1e-9)


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("length", [None, 12])
def test_the_cosine_schedule_is_that_of_torch(length: int | None, warmup: int) -> None:
    end = length or 20
    schedule = CosineSchedule(warmup=warmup, length=length, final=0.05)
    found = [schedule.factor_at(round, 20) for round in range(20)]
    expected = in_torch(
        end, warmup, lambda optimizer: schedulers.CosineAnnealingLR(optimizer, end - warmup, eta_min=0.05)
    )
    assert found[:end] == pytest.approx(expected, rel=1e-9)
    assert found[end:] == pytest.approx([0.05] * (20 - end))


def test_a_schedule_over_rounds_multiplies_the_rate_and_its_decay() -> None:
    schedule = StepSchedule(every=2, gamma=0.1)
    local = LocalTraining(lr=0.4, round_decay=0.5, schedule=schedule)
    rates = [federation(rounds=4, local=local).context(round).local.lr_at(7) for round in range(4)]
    assert rates == pytest.approx([0.4, 0.2, 0.01, 0.005])


def test_a_schedule_over_steps_starts_again_in_each_round() -> None:
    schedule = StepSchedule(over="steps", every=2, gamma=0.1, warmup=1)
    local = LocalTraining(lr=0.4, lr_alpha=1.0, lr_power=1.0, schedule=schedule)
    for round in range(2):
        steps = federation(local=local).context(round).local
        assert [steps.lr_at(i) for i in range(4)] == pytest.approx([0.2, 0.2, 0.4 / 3, 0.01])
        assert steps.with_constant_rate(0.3).lr_at(3) == 0.3


def test_a_constant_schedule_changes_no_bit() -> None:
    plain, constant = (
        run(FedAvg(), federation(local=replace(LOCAL, schedule=schedule)))
        for schedule in (CONSTANT, ConstantSchedule(over="steps"))
    )
    assert [each.digest for each in constant] == [each.digest for each in plain]


def test_a_length_within_the_warmup_and_a_missing_one_are_refused() -> None:
    with pytest.raises(SpecError, match="over: steps"):
        CosineSchedule(over="steps")
    with pytest.raises(SpecError, match="warm-up"):
        CosineSchedule(warmup=4, length=4)


# total step sizes


def test_the_total_step_size_of_nesterov_is_the_way_under_a_constant_gradient() -> None:
    local = LocalTraining(lr=0.3, momentum=0.9, optimizer=SGD(nesterov=True), lr_alpha=0.2)
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=True)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = local.lr_at(step)
        weight.grad = -torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert local.total_step_size(6) == pytest.approx(weight.item(), rel=1e-12)


def test_only_sgd_has_a_total_step_size() -> None:
    with pytest.raises(ValueError, match="AdamW has no total step size"):
        replace(LOCAL, optimizer=AdamW()).total_step_size(3)
