"""ExperimentRun: the steps of a run, from the data to the last round, with its checkpoints.

A subclass says which pool trains the clients: the coordinator's (`actors.coordinator`) trains on Ray, and
that of `jobs.run.without_ray.in_process_attempt` in this process.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeAlias

import torch

from fedsim.base.progress import relay_progress
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.data import Dataset, Partition, SampledPartition
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.evaluation.model_selection import ChosenModel
from fedsim.engine.evaluation.scoring import describe_progress
from fedsim.engine.experiment import Experiment
from fedsim.engine.initial_state import make_state_template
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.run_models import RunModels
from fedsim.engine.simulation import RoundResult, simulate_with_progress
from fedsim.engine.stopping import StopProgress

_LOG = logging.getLogger(__name__)

RECORDS_PER_MESSAGE = 500

NO_SECONDS: Mapping[int, float] = {}


@dataclass(frozen=True)
class Status:
    """The coordinator's current step, for people who wait, such as "placing 4 workers"."""

    text: str


@dataclass(frozen=True)
class ResumeNotice:
    """The run goes on after a checkpoint.

    Attributes:
        round: of the checkpoint.
        digest: of the server state after this round.
        memory_digest: of all client states; None without client states, or if the checkpoint has none.
    """

    round: int
    digest: str
    memory_digest: str | None = None


@dataclass(frozen=True)
class RecalledRecords:
    """Records of earlier rounds, from the checkpoint."""

    records: tuple[Mapping[str, Any], ...]


Progress: TypeAlias = Status | ResumeNotice | RecalledRecords | RoundResult


@dataclass(frozen=True)
class CheckpointPolicy:
    """Where and when a run writes checkpoints, and how it goes on from them.

    Attributes:
        url: the folder for the checkpoints, a path or an fsspec URL.
        every: rounds between two checkpoints; the last round always has one.
        experiment: the fields that identify the run; a checkpoint with other fields is refused.
        resume: whether to go on from the last checkpoint; False removes the existing checkpoints.
        known_rounds: the number of rounds whose records the caller has.
        stack_sizes: the stack size of each round that may run again, by round.
        stop_file: a local file; once it exists, the run ends after the current round, with a checkpoint.
    """

    url: str
    every: int
    experiment: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = True
    known_rounds: int = 0
    stack_sizes: Mapping[int, int] = field(default_factory=dict)
    stop_file: str | None = None

    def is_asked_to_stop(self) -> bool:
        """Return whether somebody asked the run to end early."""
        return self.stop_file is not None and os.path.exists(self.stop_file)

    def is_due(self, round: int, last: int) -> bool:
        """Return whether the run writes a checkpoint after this round; `last` is the last round."""
        return round % self.every == 0 or round == last


class RunPool(ClientPool, Protocol):
    """A pool of a run that may go on from a checkpoint.

    Attributes:
        population: of the pool; a pool on Ray has the arrays of the object store.
        stack_size: how many clients train at once now; halved for the rest of the run if memory runs out.
        stack_sizes: {round, from 1: its stack size in an earlier attempt}. A repeated round uses no larger
            stack.
    """

    population: Population
    stack_size: int
    stack_sizes: Mapping[int, int]


class ExperimentRun(ABC):
    """A run of an experiment. A subclass opens the pool that trains the clients.

    Args:
        experiment: the run.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        known_seconds: the seconds of each round that may run again, by round, for the stop rule.

    Attributes:
        models: of the rounds so far; None before the first round.
        partition_arrays: `indices` and `offsets`; {} if clients sample their examples on demand.
        dataset_metadata: see `Dataset.to_metadata`.
    """

    def __init__(
        self,
        experiment: Experiment,
        checkpoint_policy: CheckpointPolicy | None = None,
        known_seconds: Mapping[int, float] = NO_SECONDS,
    ) -> None:
        self.experiment, self.checkpoint_policy = experiment, checkpoint_policy
        self.known_seconds = known_seconds
        self.models: RunModels | None = None
        self.partition_arrays: dict[str, Any] = {}
        self.dataset_metadata: dict[str, Any] = {}

    @property
    @abstractmethod
    def server_device(self) -> torch.device | str:
        """Return the device on which the server trains."""

    def reserve_resources(self) -> Iterator[Status]:
        """Reserve what the pool needs, before the data is loaded, and yield a status for each step."""
        return iter(())

    @abstractmethod
    def open_pool(self, population: Population) -> Generator[Status, None, RunPool]:
        """Open the pool, and yield a status for each step and each warning."""

    def release_resources(self) -> None:
        """Close the pool, and give back what was reserved."""
        return

    def complete_result(self, result: RoundResult) -> RoundResult:
        """Return a round's result with what only the subclass knows."""
        return result

    def run(self) -> Generator[Progress, None, None]:
        """Run all rounds: yield a status for each step of the set-up, then one result per round.

        The results have no server state. A run that goes on from a checkpoint first yields a `ResumeNotice`,
        and the records that the caller does not have.

        Raises:
            DoesNotFit: if an actor cannot use the GPU that it was given.
        """
        checkpoints = self._open_checkpoints() if self.checkpoint_policy else None
        try:
            yield from self.reserve_resources()
            population = yield from relay_progress(self.experiment.prepare_population(), Status)
            self.partition_arrays = _export_partition(population.partition)
            self.dataset_metadata = population.dataset.to_metadata()
            checkpoint = (yield from self._load_checkpoint(checkpoints, population)) if checkpoints else None
            pool = yield from self.open_pool(population)
            population = pool.population  # one copy of the arrays in memory is enough
            yield Status(f"round {checkpoint.round + 1 if checkpoint else 1}")
            yield from self._run_rounds(population, pool, checkpoints, checkpoint)
        finally:
            self.release_resources()

    def _open_checkpoints(self) -> Checkpoints:
        """Open the folder for checkpoints, and check before anything else that it is writable."""
        policy = self._require_checkpoint_policy()
        checkpoints = Checkpoints(policy.url, policy.experiment)
        checkpoints.check_writable()
        if policy.resume:
            checkpoints.check_newest()
        else:
            checkpoints.clear()
        return checkpoints

    def _load_checkpoint(
        self, checkpoints: Checkpoints, population: Population
    ) -> Generator[Progress, None, Checkpoint | None]:
        """Load the checkpoint to go on from, and yield the records that the caller does not have."""
        warnings: list[str] = []
        checkpoint = checkpoints.load(
            partial(make_state_template, self.experiment.algorithm, population), warnings.append
        )
        # A loop, not `yield from map(...)`: Ray calls `send` on this generator, and `map` has no `send`.
        for text in warnings:
            yield Status(text)
        if checkpoint is not None:
            _warn_of_changed_sources(checkpoint.records, self.experiment.code, population.dataset)
            yield ResumeNotice(checkpoint.round, checkpoint.digest, checkpoint.memory_digest)
            for records in _split_records(checkpoint.records, self._require_checkpoint_policy().known_rounds):
                yield RecalledRecords(records)
        return checkpoint

    def _run_rounds(
        self,
        population: Population,
        pool: RunPool,
        checkpoints: Checkpoints | None,
        checkpoint: Checkpoint | None,
    ) -> Iterator[Progress]:
        experiment, rounds = self.experiment, population.settings.rounds
        stop = StopProgress(experiment.stop, self.known_seconds) if experiment.stop else None
        models = self.models = RunModels(experiment.algorithm, population, checkpoint)
        if checkpoint is not None and checkpoint.stack_size is not None:
            # If the run had halved its stacks, the repeated rounds would come out differently at full size.
            pool.stack_size = min(pool.stack_size, checkpoint.stack_size)
        if self.checkpoint_policy is not None:
            pool.stack_sizes = self.checkpoint_policy.stack_sizes
        for result in simulate_with_progress(
            experiment.algorithm,
            population,
            pool,
            evaluate_every=experiment.evaluate_every,
            personal=experiment.personal,
            stop=stop,
            devices=experiment.devices,
            resume=checkpoint,
            device=self.server_device,
        ):
            if not isinstance(result, RoundResult):
                yield Status(describe_progress(result, len(population.list_personal_clients())))
                continue
            result = self.complete_result(result).add_sources(experiment.code, population.dataset.fingerprint)
            models.add(result)
            yield replace(result, state=None, in_flight=None)
            if checkpoints is not None:
                checkpoints.note_round(self._with_known_seconds(result))
                policy = self._require_checkpoint_policy()
                last = rounds if result.end is None else result.round
                is_stopped = policy.is_asked_to_stop()
                if is_stopped or policy.is_due(result.round, last):
                    checkpoints.save(result, pool, last, models.chosen, models.best)
                if is_stopped:
                    return

    def _with_known_seconds(self, result: RoundResult) -> RoundResult:
        """Return a repeated round with the seconds of its record, which count after another restart, too."""
        known = self.known_seconds.get(result.round)
        return result if known is None else replace(result, seconds={**result.seconds, "total": known})

    def _require_checkpoint_policy(self) -> CheckpointPolicy:
        if self.checkpoint_policy is None:
            raise RuntimeError("this run has no checkpoints")
        return self.checkpoint_policy

    def get_global_model(self) -> dict[str, Any]:
        """Return the global model of the result so far: NumPy arrays by parameter name, or {}."""
        return self.models.export_global() if self.models else {}

    def get_chosen_model(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation split."""
        return self.models.export_chosen() if self.models else None

    def get_partition(self) -> dict[str, Any]:
        """Return `indices` and `offsets` of the partition; {} if clients sample their examples on demand."""
        return self.partition_arrays

    def get_dataset_metadata(self) -> dict[str, Any]:
        """Return the metadata that a user of the model needs; see `Dataset.to_metadata`."""
        return self.dataset_metadata


def _export_partition(partition: Partition) -> dict[str, Any]:
    if isinstance(partition, SampledPartition):
        return {}
    return {"indices": partition.indices, "offsets": partition.offsets}


def _warn_of_changed_sources(
    records: Iterable[Mapping[str, Any]], code: Mapping[str, str], dataset: Dataset
) -> None:
    """Warn of packages and data that have changed since the last of these records, if it names them."""
    for last in deque(records, maxlen=1):
        engine, data = last["engine"], f"the data set {dataset.name}"
        before = {**engine.get("code", {}), data: engine.get("data", "")}
        now = {**code, data: dataset.fingerprint}
        for name in sorted(before.keys() & now.keys()):
            if before[name] and before[name] != now[name]:
                text = "%s has changed since round %d: it was %s, and is now %s"
                _LOG.warning(text, name, last["round"], before[name], now[name])


def _split_records(
    records: Iterable[Mapping[str, Any]], known: int
) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """Yield the records of the rounds after round `known`, in groups of `RECORDS_PER_MESSAGE`."""
    missing = iter(record for record in records if record["round"] > known)
    while part := tuple(islice(missing, RECORDS_PER_MESSAGE)):
        yield part
