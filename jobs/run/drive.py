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

from actors.actor_errors import DEATHS, LOSSES, cause_of, first_line, gave_up, was_memory
from actors.coordinator import Coordinator, Keeping, Phase, Recalled, Resumed
from actors.resources import cluster_nodes
from actors.server_placement import ServerRoom
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import NO_CHAOS, Chaos, Faults
from fedsim.engine.model_selection import ChosenModel
from fedsim.errors import CoordinatorLost, DoesNotFit, FedsimError, NoCapacityNow, NodeLost, NotReproduced
from jobs.run.placement import placement_of
from jobs.spec import JobSpec
from jobs.spec.partition_checks import placed
from jobs.store.records import Marks, RoundRecord

LEAD = 16
"""How many results a coordinator may be ahead of whoever reads them; they wait in memory."""

SETTLE_SECONDS = 60.0
"""So long after a loss, Ray may not know yet that a node is gone, or hold what its dead actors had."""

SURVIVED = (CoordinatorLost, NodeLost)
"""What a run survives by going on from its last checkpoint."""


@dataclass(frozen=True)
class Examined:
    """How the clients' own models did after a round; its record follows."""

    scores: PersonalScores


Step: TypeAlias = Phase | Resumed | Examined | RoundRecord


class Ledger(Protocol):
    """Where the records of a run go, each of them once."""

    def known(self) -> int:
        """How many rounds it has."""

    def marks(self, round: int) -> Marks | None:
        """The digests of a round that it has; None for one that it lacks."""

    def widths(self, since: int) -> Mapping[int, int]:
        """How many clients trained at once in each round after that one, as far as it has them."""

    def working(self) -> None:
        """Rounds run, be they new or known."""

    def add(self, record: RoundRecord) -> None:
        """Take the record of a round that it lacks."""


class Drive:
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
        keeping: Keeping | None = None,
        *,
        chaos: Chaos = NO_CHAOS,
        shrink: bool = False,
    ) -> None:
        placement = placement_of(experiment, spec, cluster_nodes(ray.nodes()), shrink=shrink)
        # Beside this process, where the data sets are; client actors get theirs from Ray.
        self._room = ServerRoom(placement.server)
        server = Coordinator.options(**self._room.options())
        self._group = f"fedsim-{secrets.token_hex(8)}"
        policy = Faults(
            client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos
        )
        self.coordinator: Any = server.remote(experiment, placement, policy, keeping, self._group)

    def __iter__(self) -> Iterator[Step]:
        """Phases while it is set up and while clients are scored, and one record per round.

        Raises:
            FedsimError: as the coordinator raised it.
            SpecError: if the data does not suit the spec, with the paths of the spec.
            NoRoomNow: if others hold the room that it needs.
            CoordinatorLost: if the coordinator died.
            OutOfMemory: if memory was why.
        """
        self._room.wait()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": LEAD}
        stream = self.coordinator.run.options(**options).remote()
        try:
            for reference in stream:
                step = ray.get(reference)
                if isinstance(step, Recalled):
                    yield from map(RoundRecord.model_validate, step.records)
                elif isinstance(step, Phase | Resumed):
                    yield step
                else:
                    if step.personal is not None:
                        yield Examined(step.personal)
                    yield RoundRecord.model_validate(step.record())
        except (*DEATHS, *LOSSES) as error:
            raise _lost(error) from error
        except RayTaskError as error:
            cause = cause_of(error, "the coordinator")
            raise (_lost(cause) if isinstance(cause, (*DEATHS, *LOSSES)) else placed(cause)) from None

    def model(self) -> dict[str, Any]:
        """The global model after the last finished round."""
        found: dict[str, Any] = self._asked(self.coordinator.model)
        return found

    def chosen(self) -> ChosenModel | None:
        """The model that validation has chosen, over NumPy arrays; None without a validation split."""
        found: ChosenModel | None = self._asked(self.coordinator.chosen)
        return found

    def partition(self) -> dict[str, Any]:
        """Who has which training example, `indices` and `offsets`; {} where clients sample when asked."""
        found: dict[str, Any] = self._asked(self.coordinator.partition)
        return found

    def about_data(self) -> dict[str, Any]:
        """What whoever uses the model has to know of the data, as `Dataset.about` has it."""
        found: dict[str, Any] = self._asked(self.coordinator.about_data)
        return found

    def _asked(self, method: Any) -> Any:
        try:
            return ray.get(method.remote())
        except (*DEATHS, *LOSSES) as error:
            raise _lost(error) from error

    def close(self) -> None:
        """End the coordinator, and with it the client actors."""
        with suppress(Exception):
            ray.kill(self.coordinator)
        with suppress(Exception):
            self._room.close()
        # One that was killed could not give its actors' room back.
        with suppress(Exception):
            remove_placement_group(get_placement_group(self._group))


def _lost(error: Exception) -> FedsimError:
    """What a dead coordinator means: out of memory it would be again, of anything else it may recover."""
    if was_memory(error):
        return gave_up("the coordinator died", 1, error)
    cause = error.cause if isinstance(error, RayTaskError) else error
    return CoordinatorLost(f"the coordinator, or what it needs, is gone: {first_line(cause)}")


@dataclass(frozen=True)
class Run:
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
    keeping: Keeping | None
    ledger: Ledger
    on_phase: Callable[[str], None]
    on_drive: Callable[[Drive], None]
    again: Callable[[FedsimError], bool]
    on_end: Callable[[Drive], None] = lambda _: None
    on_personal: Callable[[PersonalScores], None] = lambda _: None
    chaos: Chaos = NO_CHAOS
    no_room: Callable[[NoCapacityNow], bool] = lambda _: False
    after_loss: bool = False

    def to_end(self) -> dict[str, Any]:
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
                return self._once(resumed=lost_at is not None, shrink=shrink)
            except SURVIVED as error:
                if not self.again(error):
                    raise
                lost_at, shrink = time.monotonic(), True
            except DoesNotFit as error:
                if lost_at is not None and time.monotonic() - lost_at <= SETTLE_SECONDS:
                    time.sleep(1.0)
                elif lost_at is not None and not shrink:
                    # A cluster that came up again with fewer nodes: those are what there is.
                    shrink = True
                elif not (isinstance(error, NoCapacityNow) and self.no_room(error)):
                    raise

    def _once(self, resumed: bool, shrink: bool) -> dict[str, Any]:
        keeping = self.keeping
        if keeping is not None:
            known, resume = self.ledger.known(), keeping.resume or resumed
            # Of the two checkpoints that are kept, the last one may be damaged.
            widths = self.ledger.widths(max(0, known - 2 * keeping.every)) if resume else {}
            keeping = replace(keeping, known=known, widths=widths, resume=resume)
        drive = Drive(self.experiment, self.spec, keeping, chaos=self.chaos, shrink=shrink)
        try:
            self.on_drive(drive)
            for step in drive:
                self._take(step)
            self.on_end(drive)
            return drive.model()
        finally:
            drive.close()

    def _take(self, step: Step) -> None:
        if isinstance(step, Phase):
            self.on_phase(step.text)
            return
        if isinstance(step, Examined):
            self.on_personal(step.scores)
            return
        self.ledger.working()
        if isinstance(step, Resumed):
            self.on_phase(f"going on after round {step.round}, from its checkpoint")
            self._compare(step)
        elif not self._compare(step):
            self.ledger.add(step)

    def _compare(self, step: Resumed | RoundRecord) -> bool:
        """Whether the ledger has a round already, with these digests."""
        before, now = self.ledger.marks(step.round), Marks(step.digest, step.memory_digest)
        if before is not None and not before.agree(now):
            which = next(name for name in Marks._fields if getattr(before, name) != getattr(now, name))
            raise NotReproduced(
                f"round {step.round} came out differently when it ran again: its record has the {which} "
                f"{getattr(before, which)}, now it is {getattr(now, which)}",
                "the code, the data or the kind of processor has changed since; begin anew",
            )
        return before is not None
