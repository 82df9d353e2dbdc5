"""A rate that falls on plateaus: identities first, then torch's scheduler, every pool, and a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.core.schedules import ConstantSchedule, PlateauSchedule
from fedsim.curriculum import ClientCurriculum, DataCurriculum, PlateauDecay
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import SettingsError
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run, slow_unless_varied
from tests.fedsim.stacks import same_as_one_by_one, small

LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.2)

QUICKLY = PlateauSchedule(factor=0.5, patience=1, threshold=0.8)
"""A loss has to be a fifth of the best one before."""


def watched(algorithm: Algorithm | None = None, schedule: PlateauSchedule = QUICKLY) -> PlateauDecay:
    return PlateauDecay(base=algorithm or FedAvg(), schedule=schedule)


@pytest.mark.parametrize("name", slow_unless_varied(sorted(ALGORITHMS)))
def test_a_patient_schedule_is_the_algorithm_itself_bit_for_bit(name: str) -> None:
    population = federation(cohort_size=6, rounds=3)
    plain = run(quick(name), population)
    found = run(watched(quick(name), PlateauSchedule(patience=100)), population)
    assert [digest(each.state.base) for each in found] == [each.digest for each in plain]
    assert [each.metrics for each in found] == [each.metrics for each in plain]
    more = [a.traffic.down - b.traffic.down for a, b in zip(found, plain, strict=True)]
    assert more == [6 * 8] * 3


def test_the_factor_is_that_of_torchs_scheduler() -> None:
    population = federation(rounds=12, local=LOCAL)
    found = run(watched(), population)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.8)
    for result in found:
        scheduler.step(result.metrics["train_loss"])
        assert result.method["lr_factor"] == optimizer.param_groups[0]["lr"]
    assert 0 < found[-1].method["lr_factor"] < 1


def test_the_next_round_trains_at_the_lower_rate() -> None:
    """A factor of 1/2 after round 2 is a round 3 at half the rate."""
    population = federation(rounds=3, local=LOCAL)
    first, second, third = run(watched(schedule=replace(QUICKLY, patience=0, threshold=0.999)), population)
    assert [each.method["lr_factor"] for each in (first, second)] == [1.0, 0.5]
    half = federation(rounds=3, local=replace(LOCAL, lr=0.1))
    pool = SerialPool(FedAvg(), half)
    ctx, algorithm = half.context(2), FedAvg()
    cohort = list(third.cohort)
    reduced = pool.begin_training(ctx, second.state.base, cohort)()
    assert digest(algorithm.aggregate(ctx, second.state.base, reduced)) == digest(third.state.base)


def test_a_client_with_a_limit_has_the_lower_rate_with_and_without_it() -> None:
    seen = list[tuple[float, float]]()

    class Watched(FedAvg):
        def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
            seen.append((ctx.local.lr, ctx.usual_local.lr))
            return super().train_client(ctx, task)

    population, algorithm = federation(local=LOCAL), watched(Watched())
    ctx, state = population.context(0), make_initial_state(algorithm, population)
    down = algorithm.broadcast(ctx, replace(state, factor=0.5))
    loader = SerialPool(algorithm, population).worker.loader
    task = loader.make_task_without_batches(algorithm, ctx, 0, down, {}, {})
    algorithm.train_client(ctx.limit_work(1), task)
    assert seen == [(LOCAL.lr / 2, LOCAL.lr / 2)]


def test_rounds_of_the_warmup_do_not_count_and_the_factor_has_an_end() -> None:
    local = replace(LOCAL, schedule=ConstantSchedule(warmup=3))
    schedule = PlateauSchedule(factor=0.5, patience=0, threshold=0.999, warmup=3, final=0.2)
    found = run(watched(schedule=schedule), federation(rounds=8, local=local))
    assert [each.method["lr_factor"] for each in found] == [1, 1, 1, 1, 0.5, 0.25, 0.2, 0.2]


NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "best", "factor"),
    [
        # FedCL's losses are negative where most examples are easy: one that rises is a plateau.
        ([-4.5, -4.5, -4.47, -4.44, -4.4], -4.5, 0.25),
        # A cohort without examples has the loss NaN, below which nothing can be.
        ([NAN, 0.7, 0.6, 0.5, NAN, NAN, 0.4], 0.4, 1.0),
    ],
)
def test_the_factor_after_these_losses(losses: list[float], best: float, factor: float) -> None:
    population = federation(rounds=1)
    algorithm = watched(schedule=PlateauSchedule(factor=0.5, patience=1, threshold=0.01))
    ctx, pool = population.context(0), SerialPool(algorithm, population)
    state = make_initial_state(algorithm, population)
    reduced = pool.begin_training(ctx, state, [0, 1])()
    for loss in losses:
        state = algorithm.aggregate(ctx, state, replace(reduced, metrics={"train_loss": loss}))
    assert (state.best, state.factor) == (best, factor)


def test_stacks_train_as_one_by_one() -> None:
    same_as_one_by_one(watched(quick("scaffold")), 3, torch.float32, small(rounds=3, local=LOCAL))


@pytest.mark.slow
def test_actors_train_as_one_process_with_curricula_as_well(actor_group: ActorGroup) -> None:
    algorithm = watched(ClientCurriculum(base=DataCurriculum(base=FedAvg())))
    population = small(rounds=4, local=LOCAL)
    expected = [each.digest for each in run(algorithm, population)]
    actors = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    assert [each.digest for each in actors] == expected


def test_a_resumed_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    algorithm, population = watched(), federation(rounds=8, local=LOCAL)
    checkpoints, pool = Checkpoints(str(tmp_path)), SerialPool(algorithm, population)
    undisturbed = list(simulate(algorithm, population, pool))
    pool = SerialPool(algorithm, population)
    for result in simulate(algorithm, population, pool):
        checkpoints.note_round(result)
        if result.round == 5:
            checkpoints.save(result, pool, 8)
            break
    checkpoint = Checkpoints(str(tmp_path)).load(lambda: make_initial_state(algorithm, population))
    assert checkpoint is not None
    again: Any = simulate(algorithm, population, SerialPool(algorithm, population), resume=checkpoint)
    assert [each.digest for each in again] == [each.digest for each in undisturbed[5:]]
    assert undisturbed[4].method["lr_factor"] < 1


def test_the_schedule_without_its_wrapper_is_refused() -> None:
    population = federation(local=replace(LOCAL, schedule=QUICKLY))
    with pytest.raises(SettingsError, match="depends on earlier rounds"):
        list(simulate(FedAvg(), population, StackedPool(FedAvg(), population, 3)))
