"""Coordinator: the server of the federation, as an actor.

It owns the client actors, the server state and the references to the clients' memories. When it dies, they
die with it, so a run leaves nothing behind but its checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

import ray
import torch

from actors.actor_group import Crew
from actors.device import claim, notice
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.base import tree
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.data import Partition, SampledPartition
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.model_selection import ChosenModel, choose_better
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import (
    PersonalEvaluationProgress,
    RoundResult,
    ServerTrainingProgress,
    make_initial_state,
    simulate_with_progress,
)

RECALLED_AT_ONCE = 500


@dataclass(frozen=True)
class Phase:
    """What the coordinator is busy with, for people who wait."""

    text: str


@dataclass(frozen=True)
class Resumed:
    """The run goes on after this round, whose state has this digest, and its clients' memories the other.

    The memories' is None where clients keep nothing, or where the checkpoint does not say.
    """

    round: int
    digest: str
    memory_digest: str | None = None


@dataclass(frozen=True)
class Recalled:
    """Records of rounds before that one, out of the checkpoint."""

    records: tuple[Mapping[str, Any], ...]


Progress: TypeAlias = Phase | Resumed | Recalled | RoundResult


@dataclass(frozen=True)
class Keeping:
    """How a run is checkpointed.

    Attributes:
        url: the folder for its checkpoints, as fsspec knows it.
        every: rounds between two checkpoints; there is one after the last round besides.
        experiment: what makes the run what it is; checkpoints of another one are refused.
        resume: whether to go on from the last checkpoint, if there is one; else those there are removed.
        known: of how many rounds the caller has the records already.
        widths: how many clients trained at once in the last of them, as far as they may run again.
    """

    url: str
    every: int
    experiment: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = True
    known: int = 0
    widths: Mapping[int, int] = field(default_factory=dict)

    def due(self, round: int, rounds: int) -> bool:
        """Whether there is a checkpoint after this round."""
        return round % self.every == 0 or round == rounds


class CoordinatorProcess:
    """What a Coordinator does; an actor of it is made by `Coordinator`.

    Args:
        experiment: the run.
        placement: its client actors.
        faults: what happens when a client raises or an actor dies.
        keeping: how it is checkpointed; None for not at all.
        group: the name for the placement group of its client actors.
    """

    def __init__(
        self,
        experiment: Experiment,
        placement: Placement,
        faults: Faults = DEFAULT,
        keeping: Keeping | None = None,
        group: str = "",
    ) -> None:
        torch.set_num_threads(1)
        self.claim = claim(placement.server, "resources.server_gpus")
        self.experiment, self.placement, self.faults = experiment, placement, faults
        self.keeping, self.group = keeping, group
        self.params: dict[str, Any] = {}
        self.best: ChosenModel | None = None
        self.dealt: dict[str, Any] = {}
        self.data: dict[str, Any] = {}

    def run(self) -> Iterator[Progress]:
        """Run the federation: phases while it is set up, then one result per round, without the state.

        A run that goes on from a checkpoint says so, and recalls the records that the caller lacks.

        Raises:
            DoesNotFit: if somebody cannot use the GPU that it was given.
        """
        self.claim.check()
        experiment = self.experiment
        kept = self._opened() if self.keeping else None
        yield Phase(f"placing {self.placement.workers} client actors")
        crew = Crew(self.placement, inline=not experiment.algorithm.stateful, name=self.group)
        try:
            population = yield from phases(experiment.prepare_population())
            self.dealt, self.data = _arrays(population.partition), population.dataset.to_metadata()
            checkpoint = (yield from self._last(kept, population)) if kept else None
            yield Phase("waiting for the client actors")
            method, stack, graphs = experiment.algorithm, experiment.stack, experiment.graphs
            pool = RayPool(method, population, crew, faults=self.faults, stack=stack, graphs=graphs)
            population = pool.population  # one copy of the images is enough
            for text in self._notices(pool):
                yield Phase(text)
            yield Phase(f"round {checkpoint.round + 1 if checkpoint else 1}")
            yield from self._rounds(population, pool, kept, checkpoint)
        finally:
            crew.close()

    def _notices(self, pool: RayPool) -> list[str]:
        server = [{"address": "the head", "name": self.claim.name}]
        return [text for text in (notice(pool.actors), notice(server, "the server trains")) if text]

    def _opened(self) -> Checkpoints:
        """The place for checkpoints: one that cannot be used is found out before anything else is done."""
        keeping = self._keeping()
        kept = Checkpoints(keeping.url, keeping.experiment)
        kept.check_writable()
        if keeping.resume:
            kept.check_newest()
        else:
            kept.clear()
        return kept

    def _last(
        self, kept: Checkpoints, population: Population
    ) -> Generator[Progress, None, Checkpoint | None]:
        """The checkpoint to go on from; its records as far as the caller lacks them."""
        warnings: list[str] = []
        checkpoint = kept.load(make_initial_state(self.experiment.algorithm, population), warnings.append)
        # Ray sends into what yields here, which an iterator that is no generator does not take.
        for text in warnings:
            yield Phase(text)
        if checkpoint is not None:
            yield Resumed(checkpoint.round, checkpoint.digest, checkpoint.memory_digest)
            for records in _parts(checkpoint.records, self._keeping().known):
                yield Recalled(records)
            self.params = self._common(checkpoint.state)
        return checkpoint

    def _rounds(
        self, population: Population, pool: RayPool, kept: Checkpoints | None, checkpoint: Checkpoint | None
    ) -> Iterator[Progress]:
        experiment, rounds = self.experiment, population.rounds
        self.best = checkpoint.chosen if checkpoint else None
        if checkpoint is not None and checkpoint.stack_size is not None:
            # Where stacks were halved, the rounds that run again would come out differently at full width.
            pool.width = min(pool.width, checkpoint.stack_size)
        if self.keeping is not None:
            pool.widths = self.keeping.widths
        for result in simulate_with_progress(
            experiment.algorithm,
            population,
            pool,
            evaluate_every=experiment.evaluate_every,
            personal=experiment.personal,
            resume=checkpoint,
            device=self.claim.device,
        ):
            if isinstance(result, PersonalEvaluationProgress):
                most = population.partition.num_clients
                yield Phase(f"round {result.round}: scored {result.done:,} of {most:,} clients' own models")
                continue
            if isinstance(result, ServerTrainingProgress):
                what, done, most = result.progress
                yield Phase(f"round {result.round}: {what}, {done:,} of {most:,} steps")
                continue
            if self.placement.server:
                result = replace(result, engine={**result.engine, "server_device": self.claim.name})
            self.params = self._common(result.state)
            self.best = choose_better(self.best, experiment.algorithm, population, result)
            yield replace(result, state=None)
            if kept is not None:
                kept.note_round(result)
                if self._keeping().due(result.round, rounds):
                    kept.save(result, pool, rounds, self.best)

    def _keeping(self) -> Keeping:
        if self.keeping is None:
            raise RuntimeError("this run has no checkpoints")
        return self.keeping

    def _common(self, state: Any) -> dict[str, Any]:
        """The model for everybody; {} without one: the server's is a part then, or as it was at first."""
        found: dict[str, Any] = (
            tree.to_numpy(state.params) if self.experiment.algorithm.deploys_models else {}
        )
        return found

    def model(self) -> dict[str, Any]:
        """The global model after the last finished round, NumPy arrays by parameter name; {} without one."""
        return self.params

    def chosen(self) -> ChosenModel | None:
        """The model that validation has chosen, over NumPy arrays; None without a validation split."""
        return self.best and replace(self.best, params=tree.to_numpy(self.best.params))

    def partition(self) -> dict[str, Any]:
        """Who has which training example, `indices` and `offsets` as in `Partition`; {} where all sample."""
        return self.dealt

    def about_data(self) -> dict[str, Any]:
        """What whoever uses the model has to know of the data, as `Dataset.about` has it."""
        return self.data

    def pid(self) -> int:
        """The process that this actor runs in."""
        return os.getpid()


def _arrays(partition: Partition) -> dict[str, Any]:
    if isinstance(partition, SampledPartition):
        return {}
    return {"indices": partition.indices, "offsets": partition.offsets}


def _parts(records: Iterable[Mapping[str, Any]], known: int) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """The records of rounds above `known`, some at a time."""
    missing = iter(record for record in records if record["round"] > known)
    while part := tuple(islice(missing, RECALLED_AT_ONCE)):
        yield part


def phases(preparing: Generator[str, None, Population]) -> Generator[Phase, None, Population]:
    """What a preparation says, as phases; its return value is the population."""
    while True:
        try:
            yield Phase(next(preparing))
        except StopIteration as end:
            population: Population = end.value
            return population


Coordinator = ray.remote(num_cpus=0)(CoordinatorProcess)
