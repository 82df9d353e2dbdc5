"""Driving a run: a coordinator at work, and another one after it when it is lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
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
from jobs.run.placement import choose_placement
from jobs.spec import JobSpec
from jobs.spec.data_checks import use_spec_paths
from jobs.store.records import RoundRecord, StateDigests

MAX_RESULTS_AHEAD = 16
"""How many results a coordinator may be ahead of whoever reads them; they wait in memory."""

CLUSTER_RECOVERY_SECONDS = 60.0
"""So long after a loss, Ray may not know yet that a node is gone, or hold what its dead actors had."""

RESTARTABLE_ERRORS = (CoordinatorLost, NodeLost)
"""What a run survives by going on from its last checkpoint."""


@dataclass(frozen=True)
class NewPersonalScores:
    """How the clients' own models did after a round; its record follows."""

    scores: PersonalScores


Step: TypeAlias = Status | ResumeNotice | NewPersonalScores | RoundRecord


class Ledger(Protocol):
    """Where the records of a run go, each of them once."""

    def count_rounds(self) -> int:
        """How many rounds it has."""

    def read_digests(self, round: int) -> StateDigests | None:
        """The digests of a round that it has; None for one that it lacks."""

    def read_stack_sizes(self, since: int) -> Mapping[int, int]:
        """How many clients trained at once in each round after that one, as far as it has them."""

    def mark_running(self) -> None:
        """Rounds run, be they new or known."""

    def add(self, record: RoundRecord) -> None:
        """Take the record of a round that it lacks."""


class RunAttempt:
    """A coordinator at work: iterate over what it says, and close it whatever happened.

    Args:
        experiment: what to run.
        spec: whose resources and fault policy apply.
        keeping: how it is checkpointed; None for not at all.
        chaos: faults to be made on purpose; no part of the experiment, and no result depends on a dead actor.
        shrink: take fewer workers than asked for where the cluster holds no more, as after a loss.

    Raises:
        DoesNotFit: if the cluster, empty, could not hold the workers.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: JobSpec,
        keeping: CheckpointPolicy | None = None,
        *,
        chaos: Chaos = NO_CHAOS,
        shrink: bool = False,
    ) -> None:
        placement = choose_placement(experiment, spec, parse_ray_nodes(ray.nodes()), shrink=shrink)
        # Beside this process, where the data sets are; client actors get theirs from Ray.
        self._server_placement = ServerPlacement(placement.server_gpus)
        server = Coordinator.options(**self._server_placement.make_actor_options())
        self._placement_group_name = f"fedsim-{secrets.token_hex(8)}"
        policy = Faults(
            client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos
        )
        self.coordinator: Any = server.remote(
            experiment, placement, policy, keeping, self._placement_group_name
        )

    def __iter__(self) -> Iterator[Step]:
        """Phases while it is set up and while clients are scored, and one record per round.

        Raises:
            FedsimError: as the coordinator raised it.
            SpecError: if the data does not suit the spec, with the paths of the spec.
            NoRoomNow: if others hold the room that it needs.
            CoordinatorLost: if the coordinator died.
            OutOfMemory: if memory was why.
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
        """The global model after the last finished round."""
        found: dict[str, Any] = self._call_coordinator(self.coordinator.get_global_model)
        return found

    def get_chosen_model(self) -> ChosenModel | None:
        """The model that validation has chosen, over NumPy arrays; None without a validation split."""
        found: ChosenModel | None = self._call_coordinator(self.coordinator.get_chosen_model)
        return found

    def get_partition(self) -> dict[str, Any]:
        """Who has which training example, `indices` and `offsets`; {} where clients sample when asked."""
        found: dict[str, Any] = self._call_coordinator(self.coordinator.get_partition)
        return found

    def get_dataset_metadata(self) -> dict[str, Any]:
        """What whoever uses the model has to know of the data, as `Dataset.about` has it."""
        found: dict[str, Any] = self._call_coordinator(self.coordinator.get_dataset_metadata)
        return found

    def _call_coordinator(self, method: Any) -> Any:
        try:
            return ray.get(method.remote())
        except (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS) as error:
            raise _make_loss_error(error) from error

    def close(self) -> None:
        """End the coordinator, and with it the client actors."""
        with suppress(Exception):
            ray.kill(self.coordinator)
        with suppress(Exception):
            self._server_placement.close()
        # One that was killed could not give its actors' room back.
        with suppress(Exception):
            remove_placement_group(get_placement_group(self._placement_group_name))


def _make_loss_error(error: Exception) -> FedsimError:
    """What a dead coordinator means: out of memory it would be again, of anything else it may recover."""
    if ran_out_of_memory(error):
        return make_death_error("the coordinator died", 1, error)
    cause = error.cause if isinstance(error, RayTaskError) else error
    return CoordinatorLost(f"the coordinator, or what it needs, is gone: {first_line(cause)}")


@dataclass(frozen=True)
class RunWithRestarts:
    """A run with all its drives.

    Attributes:
        experiment: what to run.
        spec: whose resources and fault policy apply.
        keeping: how it is checkpointed; None for not at all: then it begins anew after a loss.
        ledger: takes the records.
        on_phase: told what is being waited for.
        on_drive: told of every drive as it begins.
        again: asked after a loss whether there is to be another drive.
        on_end: told of the drive that came to the end, before it is closed.
        on_personal: told how the clients' own models did, before the record of that round is added.
        chaos: faults to be made on purpose.
        no_room: asked, where others hold the room, whether to wait on; by default that ends the run.
        after_loss: whether the run was lost by another process, so that its cluster may be coming up again.
    """

    experiment: Experiment
    spec: JobSpec
    checkpoint_policy: CheckpointPolicy | None
    ledger: Ledger
    on_status: Callable[[str], None]
    on_attempt: Callable[[RunAttempt], None]
    may_restart: Callable[[FedsimError], bool]
    on_end: Callable[[RunAttempt], None] = lambda _: None
    on_personal: Callable[[PersonalScores], None] = lambda _: None
    chaos: Chaos = NO_CHAOS
    may_wait_for_capacity: Callable[[NoCapacityNow], bool] = lambda _: False
    after_loss: bool = False

    def run_to_end(self) -> dict[str, Any]:
        """Have all rounds run, and each record written once.

        Returns:
            The global model at the end, as NumPy arrays by parameter name.

        Raises:
            FedsimError: as the coordinator raised it.
            CoordinatorLost, NodeLost: once too often.
            NotReproduced: if a round that ran again came out differently.
        """
        lost_at = time.monotonic() if self.after_loss else None
        shrink = False
        while True:
            try:
                return self._run_attempt(resumed=lost_at is not None, shrink=shrink)
            except RESTARTABLE_ERRORS as error:
                if not self.may_restart(error):
                    raise
                lost_at, shrink = time.monotonic(), True
            except DoesNotFit as error:
                if lost_at is not None and time.monotonic() - lost_at <= CLUSTER_RECOVERY_SECONDS:
                    time.sleep(1.0)
                elif lost_at is not None and not shrink:
                    # A cluster that came up again with fewer nodes: those are what there is.
                    shrink = True
                elif not (isinstance(error, NoCapacityNow) and self.may_wait_for_capacity(error)):
                    raise

    def _run_attempt(self, resumed: bool, shrink: bool) -> dict[str, Any]:
        keeping = self.checkpoint_policy
        if keeping is not None:
            known, resume = self.ledger.count_rounds(), keeping.resume or resumed
            # Of the two checkpoints that are kept, the last one may be damaged.
            widths = self.ledger.read_stack_sizes(max(0, known - 2 * keeping.every)) if resume else {}
            keeping = replace(keeping, known=known, widths=widths, resume=resume)
        drive = RunAttempt(self.experiment, self.spec, keeping, chaos=self.chaos, shrink=shrink)
        try:
            self.on_attempt(drive)
            for step in drive:
                self._handle_step(step)
            self.on_end(drive)
            return drive.get_global_model()
        finally:
            drive.close()

    def _handle_step(self, step: Step) -> None:
        if isinstance(step, Status):
            self.on_status(step.text)
            return
        if isinstance(step, NewPersonalScores):
            self.on_personal(step.scores)
            return
        self.ledger.mark_running()
        if isinstance(step, ResumeNotice):
            self.on_status(f"going on after round {step.round}, from its checkpoint")
            self._has_round(step)
        elif not self._has_round(step):
            self.ledger.add(step)

    def _has_round(self, step: ResumeNotice | RoundRecord) -> bool:
        """Whether the ledger has a round already, with these digests."""
        before, now = self.ledger.read_digests(step.round), StateDigests(step.digest, step.memory_digest)
        if before is not None and not before.agrees_with(now):
            which = next(name for name in StateDigests._fields if getattr(before, name) != getattr(now, name))
            raise NotReproduced(
                f"round {step.round} came out differently when it ran again: its record has the {which} "
                f"{getattr(before, which)}, now it is {getattr(now, which)}",
                "the code, the data or the kind of processor has changed since; begin anew",
            )
        return before is not None
