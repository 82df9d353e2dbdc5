"""Clients that train at once in actors: the same bits as in one process, at the same stack size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.actor_group import ActorGroup
from actors.coordinator import CoordinatorProcess
from actors.plan.measure import Probe
from actors.plan.short_rounds import ShortRounds
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.algorithms import FedBABU, LayerSchedule
from fedsim.algorithms.averaging.scaffold import Scaffold
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.checkpoints.experiment_run import CheckpointPolicy
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Batch, ClientTask, Context, LocalTraining, RunSettings
from fedsim.core.optimizers import AdamW
from fedsim.core.schedules import CosineSchedule
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import Chaos, Faults
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models.net import Params
from tests.fedsim.federations import federation, with_settings
from tests.fedsim.methods import quick
from tests.fedsim.stacks import check_closed, deep
from tests.open_actors import open_actors

pytestmark = pytest.mark.usefixtures("ray_cluster")


MORE = [
    "ace_pfl",
    "cd2_pfed",
    "fedcl",
    "fedensemble",
    "fedgen",
    "fedpac",
    "ifca",
    "kdia",
    "kt_pfl",
    "moon",
    "per_fedavg",
]
"""Algorithms with instructions to each client, whole models up, noise, or client states of
other kinds."""


@pytest.mark.parametrize("stack_size", [1, 3])
@pytest.mark.parametrize("name", ["scaffold", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_digests_do_not_depend_on_where_stacks_train(
    name: str, stack_size: int, actor_group: ActorGroup
) -> None:
    algorithm, population = quick(name), federation(cohort_size=8, rounds=3)
    expected = list(simulate(algorithm, population, StackedPool(algorithm, population, stack_size)))
    found = list(
        simulate(algorithm, population, RayPool(algorithm, population, actor_group, stack=stack_size))
    )
    assert [(r.digest, r.memory_digest) for r in found] == [(r.digest, r.memory_digest) for r in expected]
    assert [(r.metrics, r.traffic) for r in found] == [(r.metrics, r.traffic) for r in expected]
    assert [r.engine["width"] for r in found] == [stack_size] * 3
    assert [r.engine.get("stacked") for r in found] == [r.engine.get("stacked") for r in expected]


@pytest.mark.parametrize("stack_size", [1, 3])
def test_settings_of_local_training_travel_to_the_workers(stack_size: int, actor_group: ActorGroup) -> None:
    schedule = CosineSchedule(warmup=1)
    local = LocalTraining(
        epochs=1,
        batch_size=8,
        lr=0.01,
        optimizer=AdamW(),
        clip_norm=0.5,
        label_smoothing=0.1,
        schedule=schedule,
    )
    algorithm, population = quick("fedavg"), federation(cohort_size=8, rounds=3, local=local)
    expected = list(simulate(algorithm, population, StackedPool(algorithm, population, stack_size)))
    found = list(
        simulate(algorithm, population, RayPool(algorithm, population, actor_group, stack=stack_size))
    )
    assert [r.digest for r in found] == [r.digest for r in expected]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["vanilla", "anti"])
def test_layers_open_while_stacks_train(order: Any, actor_group: ActorGroup) -> None:
    """Closed blocks keep their first values; with all open it is FedBABU; the bits are those of a stack."""
    population = deep()
    for algorithm, reference in (
        (LayerSchedule(order=order, times=(0, 2, 5)), LayerSchedule(order=order, times=(0, 2, 5))),
        (LayerSchedule(order=order, times=(0, 0, 0)), FedBABU()),
    ):
        expected = list(simulate(reference, population, StackedPool(reference, population, 3)))
        found = list(simulate(algorithm, population, RayPool(algorithm, population, actor_group, stack=3)))
        assert [(r.digest, r.traffic) for r in found] == [(r.digest, r.traffic) for r in expected]
        assert all(r.engine["stacked"]["together"] >= 6 for r in found)
        if algorithm == reference:
            check_closed(order, population, found)


@pytest.mark.weekly
def test_an_actor_that_dies_in_a_stack_changes_nothing() -> None:
    population, faults = (
        federation(cohort_size=9, rounds=3),
        Faults(max_retries=9, chaos=Chaos(kill_actor=0.3)),
    )
    expected = list(simulate(Scaffold(), population, StackedPool(Scaffold(), population, 3)))
    with open_actors(2) as actor_group:
        pool = RayPool(Scaffold(), population, actor_group, faults=faults, stack=3)
        found = list(simulate(Scaffold(), population, pool))
    assert sum(r.engine["restarts"] for r in found) > 0
    assert [(r.digest, r.memory_digest) for r in found] == [(r.digest, r.memory_digest) for r in expected]


@dataclass(frozen=True, kw_only=True)
class Large(Scaffold):
    """More than two clients at once run out of memory."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        weights = params["head.bias"]
        while torch._C._functorch.is_batchedtensor(weights):
            weights = torch._C._functorch.get_unwrapped(weights)
            if len(weights) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(ctx, task, params, batch)


def test_too_little_memory_halves_the_stack_size_and_loses_nothing(actor_group: ActorGroup) -> None:
    population = federation(cohort_size=8, rounds=3)
    expected = list(simulate(Large(), population, StackedPool(Large(), population, 2)))
    pool = RayPool(Large(), population, actor_group, stack=4)
    found = list(simulate(Large(), population, pool))
    assert [(r.digest, r.memory_digest) for r in found] == [(r.digest, r.memory_digest) for r in expected]
    assert pool.stack_size == 2
    assert [r.engine["width"] for r in found] == [2] * 3


def test_a_run_goes_on_at_the_stack_size_that_it_had(actor_group: ActorGroup, tmp_path: Path) -> None:
    """Even where there would be memory for the full stack size by then, as on a larger share of a GPU."""
    population = federation(cohort_size=8, rounds=3)
    expected = [r.digest for r in simulate(Scaffold(), population, StackedPool(Scaffold(), population, 2))]
    keeping = CheckpointPolicy(str(tmp_path), every=1)
    first, kept = with_settings(population, rounds=1), Checkpoints(str(tmp_path))
    pool = RayPool(Large(), population, actor_group, stack=4)
    list(coordinator(Large(), population, keeping)._run_rounds(first, pool, kept, None))
    pool = RayPool(Scaffold(), population, actor_group, stack=4)
    going_on = coordinator(Scaffold(), population, keeping)._run_rounds(
        population, pool, kept, kept.load(lambda: make_initial_state(Scaffold(), population))
    )
    assert [r.digest for r in going_on if isinstance(r, RoundResult)] == expected[1:]


@dataclass(frozen=True, kw_only=True)
class Growing(Large):
    """As from the third round on."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        return (super() if ctx.round >= 2 else super(Large, self)).loss(ctx, task, params, batch)


def test_rounds_that_run_again_have_the_stack_size_that_they_had(
    actor_group: ActorGroup, tmp_path: Path
) -> None:
    """After a loss before the checkpoint that would say it, where the full stack size fits now."""
    population = federation(cohort_size=8, rounds=4)
    before = list(simulate(Growing(), population, RayPool(Growing(), population, actor_group, stack=4)))
    widths = {result.round: result.engine["width"] for result in before}
    assert widths == {1: 4, 2: 4, 3: 2, 4: 2}
    keeping = CheckpointPolicy(str(tmp_path), every=10, stack_sizes=widths)
    pool = RayPool(Scaffold(), population, actor_group, stack=4)
    again = coordinator(Scaffold(), population, keeping)._run_rounds(population, pool, None, None)
    assert [r.digest for r in again if isinstance(r, RoundResult)] == [r.digest for r in before]


def test_a_plan_measures_full_stacks_and_says_if_they_were_halved(
    actor_group: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = federation(cohort_size=8, rounds=3)
    rounds = ShortRounds(Large(), RayPool(Large(), population, actor_group, stack=4))
    probe, trained = Probe(described(Large(), population), rounds), list[tuple[list[int], int]]()
    train = rounds.train
    monkeypatch.setattr(rounds, "train", lambda *args: trained.append(args) or train(*args))
    probe.check_first_clients()
    # The largest ones, whatever their number; and two steps of each, so that there is a momentum.
    largest = sorted(rounds.cohorts[0], key=population.partition.size, reverse=True)
    assert trained == [(largest[:1], 1), (largest[: 4 * rounds.workers], 2)]
    assert (rounds.pool.stack_size, probe.stack) == (2, 4)


def coordinator(algorithm: Algorithm, population: Population, policy: CheckpointPolicy) -> CoordinatorProcess:
    return CoordinatorProcess(described(algorithm, population), Placement(1, 1, 0), checkpoint_policy=policy)


def described(algorithm: Algorithm, population: Population) -> Experiment:
    """An experiment of as many rounds; the rest of it is not asked for."""
    return Experiment(
        algorithm=algorithm,
        settings=RunSettings(rounds=population.settings.rounds, cohort_size=8),
        num_clients=10,
        dataset=("", {}),
        partition=("", {}),
        models=(),
    )


def one_by_one(population: Population) -> list[str]:
    return [r.digest for r in simulate(Scaffold(), population, SerialPool(Scaffold(), population))]


def test_the_automatic_stack_size_is_one_by_one_on_a_cpu(actor_group: ActorGroup) -> None:
    population = federation(cohort_size=8, rounds=1)
    pool = RayPool(Scaffold(), population, actor_group, stack="auto")
    assert [r.digest for r in simulate(Scaffold(), population, pool)] == one_by_one(population)
