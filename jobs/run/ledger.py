"""The ledger of a job's run: the store, written to by the one process that the job is meant to be run by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from fedsim.errors import FedsimError, StoreError
from jobs.store.database import NO_ANSWER_ERRORS
from jobs.store.job_store import JobStore
from jobs.store.records import RoundRecord, StateDigests
from jobs.store.states import JobState

log = logging.getLogger("fedsim.runner")

STORE_SECONDS = 120.0
"""How long a runner waits for a store that does not answer: a database that is started again comes back."""

PAUSE_SECONDS = 1.0

T = TypeVar("T")


def find_no_answer_message(error: BaseException) -> str | None:
    """The driver's words where an error means that the store did not answer; None where it did."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    # Where no connection came free the driver was not even asked.
    return str(getattr(cause, "orig", cause)) if isinstance(cause, NO_ANSWER_ERRORS) else None


def retry_store_call(call: Callable[[], T], seconds: float = STORE_SECONDS) -> T:
    """Call the store, again while it does not answer.

    Every method of the store is one transaction that may be sent twice: a round is there once all the same,
    and so is a restart that says how many there were before.

    Raises:
        SQLAlchemyError: of the kinds in `SILENCES`: it has not answered for so long.
        StoreError: nor when it was to be opened.
        StoreFull: its disk is full, at once.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (*NO_ANSWER_ERRORS, StoreError) as error:
            words = find_no_answer_message(error)
            if time.monotonic() > deadline or words is None:
                raise
            log.warning("the store did not answer, and is asked again: %s", words)
            time.sleep(PAUSE_SECONDS)


class StoreLedger:
    """The ledger of a job.

    Args:
        store: where the rounds go.
        job_id: the job.
        holder: the Ray job that this process is; None where it is not known. It changes the job's state only
            while the job is its own.
    """

    def __init__(self, store: JobStore, job_id: str, holder: str | None = None) -> None:
        self.store, self.job_id, self.holder = store, job_id, holder
        job = retry_store_call(lambda: store.get(job_id))
        self._rounds, self._restarts = job.rounds_done, job.restarts
        self._working = False

    def count_rounds(self) -> int:
        """How many rounds the store has."""
        return self._rounds

    def read_digests(self, round: int) -> StateDigests | None:
        """The digests of a round in the store; None for one that it lacks."""
        if round > self._rounds:
            return None
        found = retry_store_call(lambda: self.store.rounds(self.job_id, round - 1, 1))
        return next((record.digests() for record in found if record.round == round), None)

    def read_stack_sizes(self, since: int) -> dict[int, int]:
        """How many clients trained at once in each round after that one that the store has."""
        found = retry_store_call(lambda: self.store.rounds(self.job_id, since))
        return {record.round: record.engine.width for record in found}

    def add(self, record: RoundRecord) -> None:
        """Write a round, and to the log how it went."""
        retry_store_call(lambda: self.store.add_round(self.job_id, record))
        self._rounds = max(self._rounds, record.round)
        scores = ", ".join(
            f"{name} {value:.4f}" for name, value in record.metrics.items() if isinstance(value, float)
        )
        for client, cause in (record.engine.model_extra or {}).get("client_errors", {}).items():
            log.warning("round %d: client %s was left out: %s", record.round, client, cause)
        took, mark = record.seconds.total, record.digest[:12]
        log.info("round %d: %s (%.2f s, digest %s)", record.round, scores, took, mark)

    def mark_running(self) -> None:
        """Have the job RUNNING, at first and again after a loss."""
        if not self._working:
            self._working = retry_store_call(
                lambda: self.store.change_state(
                    self.job_id, JobState.STARTING, JobState.RUNNING, holder=self.holder
                )
            )

    def restart_after_loss(self, limit: int, error: FedsimError) -> bool:
        """Have the job STARTING again, if that may be once more; the limit is of all its restarts."""
        self._working = False
        message = f"going on from the last checkpoint after a loss: {error}"
        seen = self._restarts
        goes_on = retry_store_call(
            lambda: self.store.restart(self.job_id, limit, message, holder=self.holder, seen=seen)
        )
        self._restarts += goes_on
        return goes_on
