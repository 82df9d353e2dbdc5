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
from jobs.spec_fields import Faults
from jobs.states import ACTIVE, STARTED, FailureReason, JobState
from jobs.store import JobStore

log = logging.getLogger("fedsim.dispatch")

FRESH_SECONDS = 5.0
"""A runner that showed life so lately needs no question to Ray."""

GONE_SECONDS = 15.0
"""A runner that Ray does not know, and that showed no life for so long, is gone."""

CANCEL_SECONDS = 6.0
"""How long a runner has to cancel itself before Ray is asked to end it."""


def submission_id(job: Job) -> str:
    """The id of a job's Ray job. Ray takes each id once, so a second submission does nothing.

    A restart inside the runner counts too, but stays in the Ray job that the store names.
    """
    life = f"{job.resumes}-{job.restarts}" if job.resumes else f"{job.restarts}"
    return job.submission_id or f"fedsim-{job.id}-{life}"


def max_restarts(job: Job) -> int:
    """How often a job may be started again by itself."""
    return int(job.spec.get("faults", {}).get("max_restarts", Faults().max_restarts))


def runner_environment(settings: Settings, submission: str) -> dict[str, str]:
    """What a runner is told beside its job: the settings, who it is, and to use the Ray that started it."""
    variables = settings.environment() | {"FEDSIM_RAY_ADDRESS": "auto", "FEDSIM_SUBMISSION": submission}
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
        name = submission_id(job)
        ray.submit(name, [*self.command, job.id], runner_environment(self.settings, name))
        # Only now: a name in the store says that Ray did take the job once.
        self.store.set_submission(job.id, name)
        log.info("job %s submitted as %s", job.id, name)

    def _settle(self, ray: RayJobs, job_id: str) -> None:
        name = submission_id(self.store.get(job_id))
        found = ray.find(name)
        # The store is read after Ray: a runner writes how it ended before it ends, never the other way round.
        job = self.store.get(job_id)
        if job.state not in ACTIVE or submission_id(job) != name:
            return
        if found is not None and job.submission_id is None:
            self.store.set_submission(job.id, name)
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
        elif job.submission_id is None:
            self.submit(ray, job)
        else:
            self._again(ray, job, "the Ray cluster that ran this job is gone")

    def _settle_ended(self, ray: RayJobs, job: Job, found: RayJob) -> None:
        """Its process has ended and has not said how."""
        if job.state is JobState.CANCELLING:
            self.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
            return
        said = ray.log_tail(submission_id(job)) or found.message
        if found.exit_code is not None and 0 <= found.exit_code < 128:
            what = f"the job's process ended with exit code {found.exit_code} before the job was done"
            self._fail(job, FailureReason.INTERNAL, f"{what}; it said last:\n{said}")
        else:
            what = "the job's process was killed before the job was done"
            self._again(ray, job, f"{what}; it said last:\n{said}")

    def _again(self, ray: RayJobs, job: Job, what: str) -> None:
        """Have a job whose process is gone go on from its checkpoint in another one, if it may once more."""
        limit, name = max_restarts(job), submission_id(job)
        if self.store.restart(job.id, limit, what[-4000:], lost=name):
            log.warning("job %s starts again: %s", job.id, what)
            self._log(job, "WARNING", f"starting again: {what}")
            self.submit(ray, self.store.get(job.id))
        elif job.restarts >= limit:
            restarts = f"{limit} restart{'s' * (limit != 1)}"
            self._fail(job, FailureReason.HEARTBEAT_LOST, f"{what}\n(after {restarts}, as many as may be)")

    def _fail(self, job: Job, reason: FailureReason, message: str) -> None:
        if self.store.advance(job.id, STARTED, JobState.FAILED, reason=reason, message=message[-4000:]):
            log.warning("job %s failed: %s", job.id, message)
            self._log(job, "ERROR", message)

    def _log(self, job: Job, level: str, message: str) -> None:
        """A line in the job's own log, whose process cannot write it any more."""
        with self.settings.log_path(job.id).open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {level} {message}\n")

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
