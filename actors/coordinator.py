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

from actors.actor_group import ActorGroup
from actors.device import acquire_device, describe_cpu_fallback
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

RECORDS_PER_MESSAGE = 500


@dataclass(frozen=True)
class Status:
    """What the coordinator is busy with, for people who wait."""

    text: str


@dataclass(frozen=True)
class ResumeNotice:
    """The run goes on after this round, whose state has this digest, and its clients' memories the other.

    The memories' is None where clients keep nothing, or where the checkpoint does not say.
    """

    round: int
    digest: str
    memory_digest: str | None = None


@dataclass(frozen=True)
class RecalledRecords:
    """Records of rounds before that one, out of the checkpoint."""

    records: tuple[Mapping[str, Any], ...]


Progress: TypeAlias = Status | ResumeNotice | RecalledRecords | RoundResult


@dataclass(frozen=True)
class CheckpointPolicy:
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
    known_rounds: int = 0
    stack_sizes: Mapping[int, int] = field(default_factory=dict)

    def is_due(self, round: int, rounds: int) -> bool:
        """Whether there is a checkpoint after this round."""
        return round % self.every == 0 or round == rounds


class CoordinatorProcess:
    """What a Coordinator does; an actor of it is made by `Coordinator`.

    Args:
        experiment: the run.
        placement: its client actors.
        faults: what happens when a client raises or an actor dies.
        policy: how it is checkpointed; None for not at all.
        group: the name for the placement group of its client actors.
    """

    def __init__(
        self,
        experiment: Experiment,
        placement: Placement,
        faults: Faults = DEFAULT,
        checkpoint_policy: CheckpointPolicy | None = None,
        placement_group_name: str = "",
    ) -> None:
        torch.set_num_threads(1)
        self.device_share = acquire_device(placement.server_gpus, "resources.server_gpus")
        self.experiment, self.placement, self.faults = experiment, placement, faults
        self.checkpoint_policy, self.placement_group_name = checkpoint_policy, placement_group_name
        self.params: dict[str, Any] = {}
        self.chosen_model: ChosenModel | None = None
        self.partition_arrays: dict[str, Any] = {}
        self.dataset_metadata: dict[str, Any] = {}

    def run(self) -> Iterator[Progress]:
        """Run the federation: phases while it is set up, then one result per round, without the state.

        A run that goes on from a checkpoint says so, and recalls the records that the caller lacks.

        Raises:
            DoesNotFit: if somebody cannot use the GPU that it was given.
        """
        self.device_share.raise_if_refused()
        experiment = self.experiment
        kept = self._open_checkpoints() if self.checkpoint_policy else None
        yield Status(f"placing {self.placement.workers} client actors")
        actor_group = ActorGroup(self.placement, inline=not experiment.algorithm.stateful, name=self.placement_group_name)
        try:
            population = yield from relay_preparation(experiment.prepare_population())
            self.partition_arrays, self.dataset_metadata = (
                _export_partition(population.partition),
                population.dataset.to_metadata(),
            )
            checkpoint = (yield from self._load_checkpoint(kept, population)) if kept else None
            yield Status("waiting for the client actors")
            method, stack, graphs = experiment.algorithm, experiment.stack, experiment.graphs
            pool = RayPool(method, population, actor_group, faults=self.faults, stack=stack, graphs=graphs)
            population = pool.population  # one copy of the images is enough
            for text in self._list_device_warnings(pool):
                yield Status(text)
            yield Status(f"round {checkpoint.round + 1 if checkpoint else 1}")
            yield from self._run_rounds(population, pool, kept, checkpoint)
        finally:
            actor_group.close()

    def _list_device_warnings(self, pool: RayPool) -> list[str]:
        server = [{"address": "the head", "name": self.device_share.name}]
        return [
            text
            for text in (
                describe_cpu_fallback(pool.actor_infos),
                describe_cpu_fallback(server, "the server trains"),
            )
            if text
        ]

    def _open_checkpoints(self) -> Checkpoints:
        """The place for checkpoints: one that cannot be used is found out before anything else is done."""
        policy = self._require_checkpoint_policy()
        kept = Checkpoints(policy.url, policy.experiment)
        kept.check_writable()
        if policy.resume:
            kept.check_newest()
        else:
            kept.clear()
        return kept

    def _load_checkpoint(
        self, kept: Checkpoints, population: Population
    ) -> Generator[Progress, None, Checkpoint | None]:
        """The checkpoint to go on from; its records as far as the caller lacks them."""
        warnings: list[str] = []
        checkpoint = kept.load(make_initial_state(self.experiment.algorithm, population), warnings.append)
        # Ray sends into what yields here, which an iterator that is no generator does not take.
        for text in warnings:
            yield Status(text)
        if checkpoint is not None:
            yield ResumeNotice(checkpoint.round, checkpoint.digest, checkpoint.memory_digest)
            for records in _split_records(checkpoint.records, self._require_checkpoint_policy().known_rounds):
                yield RecalledRecords(records)
            self.params = self._copy_global_params(checkpoint.state)
        return checkpoint

    def _run_rounds(
        self, population: Population, pool: RayPool, kept: Checkpoints | None, checkpoint: Checkpoint | None
    ) -> Iterator[Progress]:
        experiment, rounds = self.experiment, population.rounds
        self.chosen_model = checkpoint.chosen if checkpoint else None
        if checkpoint is not None and checkpoint.stack_size is not None:
            # Where stacks were halved, the rounds that run again would come out differently at full width.
            pool.stack_size = min(pool.stack_size, checkpoint.stack_size)
        if self.checkpoint_policy is not None:
            pool.stack_sizes = self.checkpoint_policy.stack_sizes
        for result in simulate_with_progress(
            experiment.algorithm,
            population,
            pool,
            evaluate_every=experiment.evaluate_every,
            personal=experiment.personal,
            resume=checkpoint,
            device=self.device_share.device,
        ):
            if isinstance(result, PersonalEvaluationProgress):
                most = population.partition.num_clients
                yield Status(f"round {result.round}: scored {result.done:,} of {most:,} clients' own models")
                continue
            if isinstance(result, ServerTrainingProgress):
                what, done, most = result.progress
                yield Status(f"round {result.round}: {what}, {done:,} of {most:,} steps")
                continue
            if self.placement.server_gpus:
                result = replace(result, engine={**result.engine, "server_device": self.device_share.name})
            self.params = self._copy_global_params(result.state)
            self.chosen_model = choose_better(self.chosen_model, experiment.algorithm, population, result)
            yield replace(result, state=None)
            if kept is not None:
                kept.note_round(result)
                if self._require_checkpoint_policy().is_due(result.round, rounds):
                    kept.save(result, pool, rounds, self.chosen_model)

    def _require_checkpoint_policy(self) -> CheckpointPolicy:
        if self.checkpoint_policy is None:
            raise RuntimeError("this run has no checkpoints")
        return self.checkpoint_policy

    def _copy_global_params(self, state: Any) -> dict[str, Any]:
        """The model for everybody; {} without one: the server's is a part then, or as it was at first."""
        found: dict[str, Any] = (
            tree.to_numpy(state.params) if self.experiment.algorithm.deploys_models else {}
        )
        return found

    def get_global_model(self) -> dict[str, Any]:
        """The global model after the last finished round, NumPy arrays by parameter name; {} without one."""
        return self.params

    def get_chosen_model(self) -> ChosenModel | None:
        """The model that validation has chosen, over NumPy arrays; None without a validation split."""
        return self.chosen_model and replace(self.chosen_model, params=tree.to_numpy(self.chosen_model.params))

    def get_partition(self) -> dict[str, Any]:
        """Who has which training example, `indices` and `offsets` as in `Partition`; {} where all sample."""
        return self.partition_arrays

    def get_dataset_metadata(self) -> dict[str, Any]:
        """What whoever uses the model has to know of the data, as `Dataset.about` has it."""
        return self.dataset_metadata

    def get_pid(self) -> int:
        """The process that this actor runs in."""
        return os.getpid()


def _export_partition(partition: Partition) -> dict[str, Any]:
    if isinstance(partition, SampledPartition):
        return {}
    return {"indices": partition.indices, "offsets": partition.offsets}


def _split_records(
    records: Iterable[Mapping[str, Any]], known: int
) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """The records of rounds above `known`, some at a time."""
    missing = iter(record for record in records if record["round"] > known)
    while part := tuple(islice(missing, RECORDS_PER_MESSAGE)):
        yield part


def relay_preparation(preparing: Generator[str, None, Population]) -> Generator[Status, None, Population]:
    """What a preparation says, as phases; its return value is the population."""
    while True:
        try:
            yield Status(next(preparing))
        except StopIteration as end:
            population: Population = end.value
            return population


Coordinator = ray.remote(num_cpus=0)(CoordinatorProcess)
