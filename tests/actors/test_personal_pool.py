"""Clients' own models on actors: the numbers of the reference, whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context
from fedsim.engine.evaluation.scoring import PersonalEvaluationProgress
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate, simulate_with_progress
from tests.fedsim.federations import parted
from tests.fedsim.methods import Keeper, Tuned
from tests.open_actors import open_actors

pytestmark = pytest.mark.usefixtures("ray_cluster")


@dataclass(frozen=True, kw_only=True)
class TunedKeeper(Keeper, Tuned):
    """A head of one's own, and fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class Deadly(TunedKeeper):
    """The first actor that tunes this client dies over it."""

    mark: Path
    size: int

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """Once."""
        if task.num_examples == self.size and len(task.batches) and not self.mark.exists():
            self.mark.write_text("dead")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().personalize(ctx, task)


@pytest.fixture(scope="module")
def actor_group(ray_cluster: None) -> Iterator[ActorGroup]:
    """Two actors."""
    with open_actors(2) as actor_group:
        yield actor_group


def compare(ours: RoundResult, theirs: RoundResult) -> None:
    """Every figure of every client."""
    assert (ours.digest, ours.memory_digest) == (theirs.digest, theirs.memory_digest)
    assert (ours.metrics, ours.traffic, ours.cost) == (theirs.metrics, theirs.traffic, theirs.cost)
    assert ours.personal is not None
    assert theirs.personal is not None
    assert ours.personal.rows() == theirs.personal.rows()


def reference(population: Population) -> list[RoundResult]:
    """The same on a pool in this process."""
    algorithm = TunedKeeper()
    return list(simulate(algorithm, population, SerialPool(algorithm, population), personal="always"))


@pytest.mark.weekly
def test_actors_score_clients_as_the_reference_does(
    actor_group: ActorGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memories by reference, the next round's clients in line behind; an actor dies over a client."""
    monkeypatch.setattr("fedsim.engine.evaluation.scoring.TELL_SECONDS", 0.0)
    population = parted(clients=12, cohort_size=5)
    algorithm = Deadly(mark=tmp_path / "mark", size=max(population.partition.sizes().tolist()))
    pool, results, told = RayPool(algorithm, population, actor_group), list[RoundResult](), list[int]()
    for stage in simulate_with_progress(algorithm, population, pool, personal="always"):
        if isinstance(stage, PersonalEvaluationProgress):
            told.append(stage.done)
        else:
            results.append(stage)
    assert algorithm.mark.exists()
    for ours, theirs in zip(results, reference(population), strict=True):
        compare(ours, theirs)
    assert actor_group.restarts == 1
    assert told[-1] == 12


def test_actors_score_by_several_conventions_as_the_reference_does(actor_group: ActorGroup) -> None:
    population = replace(parted(clients=8, cohort_size=4), more_tests={"global": None})
    pool = RayPool(TunedKeeper(), population, actor_group)
    found = simulate(TunedKeeper(), population, pool, personal="always")
    for ours, theirs in zip(found, reference(population), strict=True):
        compare(ours, theirs)
        assert "personal_global_accuracy_before" in ours.metrics
