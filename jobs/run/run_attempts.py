"""Run attempts: each attempt has its own coordinator; after a loss the next attempt goes on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import get_placement_group, remove_placement_group

from actors.actor_errors import (
    ACTOR_DEATH_ERRORS,
    LOST_OBJECT_ERRORS,
    first_line,
    make_death_error,
    ran_out_of_memory,
    unwrap_task_error,
)
from actors.coordinator import CheckpointPolicy, Coordinator, RecalledRecords, ResumeNotice, Status
from actors.resources import parse_ray_nodes
from actors.server_placement import ServerPlacement
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import NO_CHAOS, Chaos, Faults
from fedsim.engine.model_selection import ChosenModel
from fedsim.errors import CoordinatorLost, DoesNotFit, FedsimError, NoCapacityNow, NodeLost, NotReproduced
from jobs.run.listener import RunListener
from jobs.run.placement import choose_placement
from jobs.spec import JobSpec
from jobs.spec.data_checks import use_spec_paths
from jobs.store.records import RoundRecord, StateDigests

MAX_RESULTS_AHEAD = 16
"""Results that a coordinator may compute ahead of their reader; they wait in memory."""

CLUSTER_RECOVERY_SECONDS = 60.0
"""Seconds after a loss in which Ray may still count a dead node, or hold the resources of dead actors."""

RESTARTABLE_ERRORS = (CoordinatorLost, NodeLost)
"""Errors after which a run goes on from its last checkpoint."""


@dataclass(frozen=True)
class NewPersonalScores:
    """The scores of the clients' personal models after a round; the round's record follows."""

    scores: PersonalScores


Step: TypeAlias = Status | ResumeNotice | NewPersonalScores | RoundRecord


class Ledger(Protocol):
    """The place for a run's records; it takes each round once."""

    def count_rounds(self) -> int:
        """Return how many rounds the ledger has."""

    def read_digests(self, round: int) -> StateDigests | None:
        """Return the digests of a round; None if the ledger does not have the round."""

    def read_stack_sizes(self, since: int) -> Mapping[int, int]:
        """Return the stack size of each round after the round `since`, by round."""

    def add(self, record: RoundRecord) -> None:
        """Add the record of a round that the ledger does not have."""


class RunAttempt:
    """One attempt of a run, with its own coordinator: iterate over its steps, and always close it.

    Args:
        experiment: the run.
        spec: its resources and its fault policy apply.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        chaos: faults to inject for a test; they change no result.
        shrink: take fewer workers than the spec asks for if the cluster has lost nodes.

    Raises:
        DoesNotFit: if the empty cluster cannot hold the workers.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: JobSpec,
        checkpoint_policy: CheckpointPolicy | None = None,
        *,
        chaos: Chaos = NO_CHAOS,
        shrink: bool = False,
    ) -> None:
        placement = choose_placement(experiment, spec, parse_ray_nodes(ray.nodes()), shrink=shrink)
        # On the node of this process, where the data sets are; client actors get the data from Ray.
        self._server_placement = ServerPlacement(placement.server_gpus)
        server = Coordinator.options(**self._server_placement.make_actor_options())
        self._placement_group_name = f"fedsim-{secrets.token_hex(8)}"
        policy = Faults(
            client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos
        )
        self.coordinator: Any = server.remote(
            experiment, placement, policy, checkpoint_policy, self._placement_group_name
        )

    def __iter__(self) -> Iterator[Step]:
        """Yield a status for each step of the set-up and of long rounds, and one record per round.

        Raises:
            FedsimError: as the coordinator raised it.
            SpecError: if the data does not fit the spec, with the paths of the spec.
            NoCapacityNow: if other work holds the resources.
            CoordinatorLost: if the coordinator died.
            OutOfMemory: if the coordinator died because memory ran out.
        """
        self._server_placement.wait_for_gpu()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": MAX_RESULTS_AHEAD}
        stream = self.coordinator.run.options(**options).remote()
        try:
            for reference in stream:
                step = ray.get(reference)
                if isinstance(step, RecalledRecords):
                    yield from map(RoundRecord.model_validate, step.records)
                elif isinstance(step, Status | ResumeNotice):
                    yield step
                else:
                    if step.personal is not None:
                        yield NewPersonalScores(step.personal)
                    yield RoundRecord.model_validate(step.record())
        except (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS) as error:
            raise _make_loss_error(error) from error
        except RayTaskError as error:
            cause = unwrap_task_error(error, "the coordinator")
            raise (
                _make_loss_error(cause)
                if isinstance(cause, (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS))
                else use_spec_paths(cause)
            ) from None

    def get_global_model(self) -> dict[str, Any]:
        """Return the global model after the last finished round."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_global_model)
        return result

    def get_chosen_model(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation split."""
        result: ChosenModel | None = self._call_coordinator(self.coordinator.get_chosen_model)
        return result

    def get_partition(self) -> dict[str, Any]:
        """Return `indices` and `offsets` of the partition; {} if clients sample their examples on demand."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_partition)
        return result

    def get_dataset_metadata(self) -> dict[str, Any]:
        """Return the metadata that a user of the model needs; see `Dataset.to_metadata`."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_dataset_metadata)
        return result

    def _call_coordinator(self, method: Any) -> Any:
        try:
            return ray.get(method.remote())
        except (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS) as error:
            raise _make_loss_error(error) from error

    def close(self) -> None:
        """End the coordinator and its client actors."""
        with suppress(Exception):
            ray.kill(self.coordinator)
        with suppress(Exception):
            self._server_placement.close()
        # A killed coordinator cannot give the resources of its actors back.
        with suppress(Exception):
            remove_placement_group(get_placement_group(self._placement_group_name))


def _make_loss_error(error: Exception) -> FedsimError:
    """Make the error for a dead coordinator: out of memory ends the run; a restart may mend other causes."""
    if ran_out_of_memory(error):
        return make_death_error("the coordinator died", 1, error)
    cause = error.cause if isinstance(error, RayTaskError) else error
    return CoordinatorLost(f"the coordinator, or what it needs, is gone: {first_line(cause)}")


@dataclass(frozen=True)
class RunWithRestarts:
    """A run with all its attempts.

    Attributes:
        experiment: the run.
        spec: its resources and its fault policy apply.
        checkpoint_policy: where and when to write checkpoints. Without one (None), the run starts again from
            round 1 after a loss.
        ledger: takes the records.
        listener: hears of the progress, and decides about restarts.
        chaos: faults to inject for a test.
        after_loss: whether another process lost this run, so that the cluster may still be starting.
    """

    experiment: Experiment
    spec: JobSpec
    checkpoint_policy: CheckpointPolicy | None
    ledger: Ledger
    listener: RunListener
    chaos: Chaos = NO_CHAOS
    after_loss: bool = False

    def run_to_end(self) -> dict[str, Any]:
        """Run all rounds, and write each record once.

        Returns:
            The global model at the end, as NumPy arrays by parameter name.

        Raises:
            FedsimError: as the coordinator raised it.
            CoordinatorLost, NodeLost: if the listener refuses another attempt.
            NotReproduced: if a repeated round has another digest than its record.
        """
        lost_at = time.monotonic() if self.after_loss else None
        shrink = False
        while True:
            try:
                return self._run_attempt(resumed=lost_at is not None, shrink=shrink)
            except RESTARTABLE_ERRORS as error:
                if not self.listener.may_restart(error):
                    raise
                lost_at, shrink = time.monotonic(), True
            except DoesNotFit as error:
                if lost_at is not None and time.monotonic() - lost_at <= CLUSTER_RECOVERY_SECONDS:
                    time.sleep(1.0)
                elif lost_at is not None and not shrink:
                    # The cluster has come up with fewer nodes: take the nodes that are there.
                    shrink = True
                elif not (isinstance(error, NoCapacityNow) and self.listener.may_wait_for_capacity(error)):
                    raise

    def _run_attempt(self, resumed: bool, shrink: bool) -> dict[str, Any]:
        policy = self._update_checkpoint_policy(resumed)
        attempt = RunAttempt(self.experiment, self.spec, policy, chaos=self.chaos, shrink=shrink)
        try:
            self.listener.on_attempt(attempt)
            for step in attempt:
                self._handle_step(step)
            self.listener.on_end(attempt)
            return attempt.get_global_model()
        finally:
            attempt.close()

    def _update_checkpoint_policy(self, resumed: bool) -> CheckpointPolicy | None:
        """Return the policy with the rounds and the stack sizes that the ledger has by now."""
        policy = self.checkpoint_policy
        if policy is None:
            return None
        known, resume = self.ledger.count_rounds(), policy.resume or resumed
        # Two checkpoints exist, and the newer one may be damaged: the rounds of both may run again.
        sizes = self.ledger.read_stack_sizes(max(0, known - 2 * policy.every)) if resume else {}
        return replace(policy, known_rounds=known, stack_sizes=sizes, resume=resume)

    def _handle_step(self, step: Step) -> None:
        if isinstance(step, Status):
            self.listener.on_status(step.text)
        elif isinstance(step, NewPersonalScores):
            self.listener.on_personal_scores(step.scores)
        else:
            self.listener.on_running()
            if isinstance(step, ResumeNotice):
                self.listener.on_status(f"going on after round {step.round}, from its checkpoint")
                self._has_round(step)
            elif not self._has_round(step):
                self.ledger.add(step)
                self.listener.on_round(step)

    def _has_round(self, step: ResumeNotice | RoundRecord) -> bool:
        """Return whether the ledger has the round with these digests; raise if it has other digests."""
        before, now = self.ledger.read_digests(step.round), StateDigests(step.digest, step.memory_digest)
        if before is not None and not before.agrees_with(now):
            which = next(name for name in StateDigests._fields if getattr(before, name) != getattr(now, name))
            raise NotReproduced(
                f"round {step.round} came out differently when it ran again: its record has the {which} "
                f"{getattr(before, which)}, now it is {getattr(now, which)}",
                "the code, the data or the kind of processor has changed since; start the run anew",
            )
        return before is not None
