"""JobWatcher: a thread of the runner that sends heartbeats, and ends the run when the job is over."""

from __future__ import annotations

import logging
import threading

from fedsim.errors import JobNotFound, StoreUnusable
from jobs.run.run_steps import Attempt
from jobs.store.job_store import JobStore
from jobs.store.records import Job, get_ray_job_id
from jobs.store.states import ACTIVE, JobState

log = logging.getLogger("fedsim.runner")

WATCH_SECONDS = 0.5
"""Seconds between two looks at the store; each look also writes a heartbeat."""


class JobWatcher:
    """A thread that writes heartbeats. It closes the attempt if the job is cancelled, over or taken over.

    Args:
        store: has the job's state.
        job_id: the job.
        ray_job_id: the Ray job of this process; None if unknown. If the store names another Ray job, the
            service gave this process up, and another process runs the job.
    """

    def __init__(self, store: JobStore, job_id: str, ray_job_id: str | None = None) -> None:
        self.store, self.job_id, self.ray_job_id = store, job_id, ray_job_id
        self.cancelled, self.must_stop = False, False
        self._attempt: Attempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_store, name="watch", daemon=True)
        self._thread.start()

    def watch_attempt(self, attempt: Attempt) -> None:
        """Close this attempt when the job is to stop; at once if it is to stop already."""
        self._attempt = attempt
        if self.is_stopped:
            attempt.close()

    @property
    def is_stopped(self) -> bool:
        """Whether this process must do nothing more for the job."""
        return self.cancelled or self.must_stop

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def _poll_store(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            try:
                self.check_store()
            except Exception as error:
                log.warning("the database did not answer: %s", error)

    def check_store(self) -> None:
        """Read the job's state, close the attempt if the job is to stop, and else write a heartbeat."""
        reason: str | None = None
        cancelling = False
        try:
            job = self.store.get(self.job_id)
            reason, cancelling = find_idle_reason(job, self.ray_job_id), job.state is JobState.CANCELLING
            if reason is None:
                self.store.record_heartbeat(self.job_id)
        except JobNotFound:
            reason = "the job has been deleted"
        except StoreUnusable as error:
            log.warning("the heartbeat could not be written: %s", error)
        if reason is not None:
            if not self.must_stop:
                self.must_stop = True
                self._close_attempt(reason)
        elif cancelling and not self.cancelled:
            self.cancelled = True
            self._close_attempt("cancelling")

    def _close_attempt(self, reason: str) -> None:
        log.info(reason)
        if self._attempt is not None:
            self._attempt.close()


def find_idle_reason(job: Job, ray_job_id: str | None) -> str | None:
    """Return why a process has nothing to do for a job; None if it has to run it.

    Args:
        job: as the store has it.
        ray_job_id: the Ray job of the process; None if unknown.
    """
    if ray_job_id not in (None, get_ray_job_id(job)):
        return "another process runs this job now"
    return None if job.state in ACTIVE else f"the job is {job.state}, and no process has to run it"
