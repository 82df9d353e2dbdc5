"""RunListener: the one object that a run tells about its progress, and asks after a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsim.core.personal_scores import PersonalScores
    from fedsim.errors import FedsimError, NoCapacityNow
    from jobs.run.run_steps import Attempt
    from jobs.store.records import RoundRecord


class RunListener:
    """The listener of a run. Every method has a default; a listener overrides the methods that it needs.

    The order of the calls: `on_attempt`, `on_status` several times, `on_running`, `on_round` for each round,
    `on_end`. After a loss the order begins again with `may_restart`.
    """

    def on_status(self, text: str) -> None:
        """Receive the current step of the set-up or of a long round, such as "placing 4 workers"."""

    def on_attempt(self, attempt: Attempt) -> None:
        """Receive a new attempt before it starts; `attempt.close()` ends it early."""

    def on_running(self) -> None:
        """Learn that the set-up is over; called before each round, and when a checkpoint is loaded."""

    def on_personal_scores(self, scores: PersonalScores) -> None:
        """Receive the scores of the clients' personal models, before the round's `on_round`."""

    def on_round(self, record: RoundRecord) -> None:
        """Receive the record of a round that the ledger did not have, after the ledger has it."""

    def on_end(self, attempt: Attempt) -> None:
        """Receive the attempt that ended the last round, before it is closed: its models can be fetched."""

    def may_restart(self, error: FedsimError) -> bool:
        """Return whether to start another attempt after a loss: one of `RESTARTABLE_ERRORS`."""
        return False

    def may_wait_for_capacity(self, error: NoCapacityNow) -> bool:
        """Return whether to try again while other work holds the cluster; it may wait before it returns."""
        return False
