"""Bringing the store and the cluster together: what each says about a job, and what follows from it.

Any process may die between any two steps: the API, the runner, Ray. So every decision is taken from the store
and from Ray as they are now, and every change is a compare-and-set on the store. All that is remembered is
how long a cancelled job has had.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from jobs.local_ray import package_path
from jobs.ray_jobs import RayJob, RayJobs
from jobs.records import Job
from jobs.settings import Settings
from jobs.states import ACTIVE, FailureReason, JobState
from jobs.store import JobStore

log = logging.getLogger("fedsim.dispatch")

FRESH_SECONDS = 5.0
"""A runner that showed life so lately needs no question to Ray."""

GONE_SECONDS = 15.0
"""A runner that Ray does not know, and that showed no life for so long, is gone."""

CANCEL_SECONDS = 6.0
"""How long a runner has to cancel itself before Ray is asked to end it."""

STARTED = frozenset({JobState.STARTING, JobState.RUNNING})


def submission_id(job: Job) -> str:
    """The id of a job's Ray job. Ray takes each id once, so a second submission does nothing."""
    return f"fedsim-{job.id}-{job.restarts}"


def runner_environment(settings: Settings) -> dict[str, str]:
    """What a runner is told beside its job: the settings, and to use the Ray that started it."""
    variables = settings.environment() | {"FEDSIM_RAY_ADDRESS": "auto"}
    if settings.ray_address is None:
        variables["PYTHONPATH"] = package_path()
    return variables


def runner_command(settings: Settings) -> tuple[str, ...]:
    """The command that runs a job, its id to be added: on this machine by this Python."""
    here = settings.ray_address in (None, "auto")
    return (sys.executable if here else "python", "-m", "jobs.runner")


class Reconciler:
    """Settles jobs one by one.

    Args:
        store: what is promised.
        settings: for the runner's environment and the logs.
        command: what runs a job; its id is added.
    """

    def __init__(self, store: JobStore, settings: Settings, command: Sequence[str]) -> None:
        self.store, self.settings, self.command = store, settings, tuple(command)
        self._cancelling_since: dict[str, float] = {}

    def settle_all(self, ray: RayJobs) -> int:
        """Settle every job that should be on the cluster.

        Returns:
            How many of them still are.

        Raises:
            RayUnavailable: Ray did not answer; the rest is settled the next time.
        """
        active = self.store.list(state=ACTIVE, limit=1000).jobs
        gone = self._cancelling_since.keys() - {job.id for job in active if job.state is JobState.CANCELLING}
        for job_id in gone:
            del self._cancelling_since[job_id]
        for job in active:
            if job.state is JobState.CANCELLING or not _showed_life(job, FRESH_SECONDS):
                self._settle(ray, job.id)
        return self.store.count(ACTIVE)

    def submit(self, ray: RayJobs, job: Job) -> None:
        """Hand a STARTING job to Ray.

        Raises:
            RayUnavailable: Ray did not take it; the next settling tries again.
        """
        self.store.set_submission(job.id, submission_id(job))
        ray.submit(submission_id(job), [*self.command, job.id], runner_environment(self.settings))
        log.info("job %s submitted as %s", job.id, submission_id(job))

    def _settle(self, ray: RayJobs, job_id: str) -> None:
        name = submission_id(self.store.get(job_id))
        found = ray.find(name)
        # The store is read after Ray: a runner writes how it ended before it ends, never the other way round.
        job = self.store.get(job_id)
        if job.state not in ACTIVE or submission_id(job) != name:
            return
        if found is None:
            self._settle_unknown(ray, job)
        elif found.ended:
            self._settle_ended(ray, job, found)
        elif job.state is JobState.CANCELLING:
            self._press(ray, job)

    def _settle_unknown(self, ray: RayJobs, job: Job) -> None:
        """Ray has never heard of it, or is another Ray than the one that ran it."""
        if job.submission_id is not None and _showed_life(job, GONE_SECONDS):
            return
        if job.state is JobState.CANCELLING:
            self.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
        elif job.state is JobState.STARTING:
            self.submit(ray, job)
        else:
            self._fail(job, FailureReason.HEARTBEAT_LOST, "the Ray cluster that ran this job is gone")

    def _settle_ended(self, ray: RayJobs, job: Job, found: RayJob) -> None:
        """Its process has ended and has not said how."""
        if job.state is JobState.CANCELLING:
            self.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
            return
        said = ray.log_tail(submission_id(job)) or found.message
        if found.exit_code is not None and 0 <= found.exit_code < 128:
            reason, what = FailureReason.INTERNAL, f"ended with exit code {found.exit_code}"
        else:
            reason, what = FailureReason.HEARTBEAT_LOST, "was killed"
        self._fail(job, reason, f"the job's process {what} before the job was done; it said last:\n{said}")

    def _fail(self, job: Job, reason: FailureReason, message: str) -> None:
        if self.store.advance(job.id, STARTED, JobState.FAILED, reason=reason, message=message[-4000:]):
            log.warning("job %s failed: %s", job.id, message)
            with self.settings.log_path(job.id).open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} ERROR {message}\n")

    def _press(self, ray: RayJobs, job: Job) -> None:
        """Cancelling is the runner's own part at first; after a while Ray ends it."""
        now = time.monotonic()
        since = self._cancelling_since.setdefault(job.id, now)
        if now - since > CANCEL_SECONDS:
            log.warning("job %s does not cancel itself: Ray is asked to end it", job.id)
            self._cancelling_since[job.id] = now
            ray.stop(submission_id(job))


def _showed_life(job: Job, seconds: float) -> bool:
    last = job.heartbeat_at
    return last is not None and (datetime.now(UTC) - last).total_seconds() < seconds
