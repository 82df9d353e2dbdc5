"""RunWithRestarts: a run with all its attempts; after a loss the next attempt goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedsim.checkpoints.experiment_run import CheckpointPolicy, ResumeNotice, Status
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import NO_CHAOS, Chaos
from fedsim.errors import CoordinatorLost, DoesNotFit, NoCapacityNow, NodeLost, NotReproduced, ObjectLost
from jobs.run.listener import RunListener
from jobs.run.run_steps import Attempt, NewPersonalScores, Step
from jobs.run.without_ray.in_process_attempt import InProcessAttempt
from jobs.spec import JobSpec
from jobs.store.records import RoundRecord, StateDigests

CLUSTER_RECOVERY_SECONDS = 60.0
"""Seconds after a loss in which Ray may still count a dead node, or hold the resources of dead actors."""

NODE_REPLACEMENT_SECONDS = 900.0
"""Seconds after a loss in which a cluster without any room for the run may still get new nodes."""

NODE_POLL_SECONDS = 10.0
"""Seconds between two looks for new nodes."""

RESTARTABLE_ERRORS = (CoordinatorLost, NodeLost, ObjectLost)
"""Errors after which a run goes on from its last checkpoint. Their code, NODE_LOST, is the reason of a job
that has no restart left. `JobListener.may_restart` counts the restarts of a job in the store, and `execute`
those of `fedsim run`."""


class Ledger(Protocol):
    """The place for a run's records; it takes each round once."""

    def count_rounds(self) -> int:
        """Return how many rounds the ledger has."""

    def read_digests(self, round: int) -> StateDigests | None:
        """Return the digests of a round; None if the ledger does not have the round."""

    def read_rounds(self, since: int) -> Sequence[RoundRecord]:
        """Return the records of all rounds after the round `since`."""

    def add(self, record: RoundRecord) -> None:
        """Add the record of a round that the ledger does not have."""


def start_on_ray(*arguments: Any, **options: Any) -> Attempt:
    """Start an attempt on Ray; see `RunAttempt` for the arguments."""
    from jobs.run.run_attempts import RunAttempt

    return RunAttempt(*arguments, **options)


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
        start_attempt: starts an attempt, on Ray or in this process.
    """

    experiment: Experiment
    spec: JobSpec
    checkpoint_policy: CheckpointPolicy | None
    ledger: Ledger
    listener: RunListener
    chaos: Chaos = NO_CHAOS
    after_loss: bool = False
    start_attempt: Callable[..., Attempt] = start_on_ray

    def run_in_this_process(self) -> dict[str, Any]:
        """Run all rounds without Ray; see `run_to_end`."""
        return replace(self, start_attempt=InProcessAttempt).run_to_end()

    def run_to_end(self) -> dict[str, Any]:
        """Run all rounds, and write each record once.

        Returns:
            The global model at the end, as NumPy arrays by parameter name.

        Raises:
            FedsimError: as the coordinator raised it.
            CoordinatorLost, NodeLost, ObjectLost: if the listener refuses another attempt.
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
                shrink = self._wait_for_room(error, lost_at, shrink)

    def _wait_for_room(self, error: DoesNotFit, lost_at: float | None, shrink: bool) -> bool:
        """Wait before the next attempt, and return whether it may shrink; raise the error if none may follow.

        After a loss the run waits for the cluster to recover, then takes the nodes that are there, then waits
        for new ones. In all other cases it waits as long as its listener does.
        """
        waited = math.inf if lost_at is None else time.monotonic() - lost_at
        if waited <= CLUSTER_RECOVERY_SECONDS:
            time.sleep(1.0)
            return shrink
        if lost_at is not None and not shrink:
            return True
        if waited <= NODE_REPLACEMENT_SECONDS:
            self.listener.on_status(f"waiting for new nodes: {error.message}")
            time.sleep(NODE_POLL_SECONDS)
            return shrink
        if isinstance(error, NoCapacityNow) and self.listener.may_wait_for_capacity(error):
            return shrink
        raise error

    def _run_attempt(self, resumed: bool, shrink: bool) -> dict[str, Any]:
        again = self._list_repeated_rounds(resumed)
        policy = self._update_checkpoint_policy(resumed, again)
        seconds = {record.round: record.seconds.total for record in again}
        options: dict[str, Any] = {"known_seconds": seconds, "chaos": self.chaos, "shrink": shrink}
        attempt = self.start_attempt(self.experiment, self.spec, policy, **options)
        try:
            self.listener.on_attempt(attempt)
            for step in attempt:
                self._handle_step(step)
            self.listener.on_end(attempt)
            return attempt.get_global_model()
        finally:
            attempt.close()

    def _list_repeated_rounds(self, resumed: bool) -> Sequence[RoundRecord]:
        """Return the records of the rounds that may run again."""
        policy = self.checkpoint_policy
        if policy is None:
            return self.ledger.read_rounds(0)
        if not (policy.resume or resumed):
            return ()
        # Two checkpoints exist, and the newer one may be damaged: the rounds of both may run again.
        return self.ledger.read_rounds(max(0, self.ledger.count_rounds() - 2 * policy.every))

    def _update_checkpoint_policy(
        self, resumed: bool, again: Sequence[RoundRecord]
    ) -> CheckpointPolicy | None:
        """Return the policy with the number of rounds of the ledger, and the stack sizes of repeated ones."""
        policy = self.checkpoint_policy
        if policy is None:
            return None
        known, resume = self.ledger.count_rounds(), policy.resume or resumed
        sizes = {record.round: record.engine.width for record in again}
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
