"""Bringing the store and the cluster together: what each says about a job, and what follows from it.

Any process may die between any two steps: the API, the runner, Ray. So every decision is taken from the store
and from Ray as they are now, and every change is a compare-and-set on the store. All that is remembered is
when a job was last seen to show life, how long it has had to end, and how often Ray has refused it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from fedsim.errors import JobNotFound, JobRefused
from jobs.local_ray.embedded_ray import package_path
from jobs.run.ray_job import NO_ANSWER, NO_ROOM, Cluster, RayJob
from jobs.run.runner_secrets import hand_over, withdraw
from jobs.settings import Settings
from jobs.spec.run_fields import Faults
from jobs.store.job_store import JobStore
from jobs.store.records import Job, ray_job_of
from jobs.store.states import ACTIVE, STARTED, FailureReason, JobState

log = logging.getLogger("fedsim.dispatch")

FRESH_SECONDS = 5.0
"""A runner that showed life so lately needs no question to Ray."""

GONE_SECONDS = 15.0
"""A runner that Ray does not know, and that showed no life for so long, is gone."""

SILENT_SECONDS = 90.0
"""A runner that Ray believes to run, and that showed no life for so long, hangs."""

BEGIN_SECONDS = 300.0
"""How long a runner that Ray believes to run has to show life for the first time: Python loads, the store is
opened, which it may wait two minutes for, and on a cluster its process may have to be placed first."""

CONFIRM_SECONDS = 5.0
"""How long a runner that seems to hang has to show life: on a machine that slept, every runner seems to."""

CANCEL_SECONDS = 6.0
"""How long a runner has to cancel itself before Ray is asked to end it."""

STOP_SECONDS = 20.0
"""How long Ray has to end a runner that hangs before it is asked again."""

ATTEMPTS = 3
"""How often a job is tried that a Ray which answers refuses, or whose folder cannot be written."""

EVERYBODYS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Troubles with files that are not one job's: the disk is full or cannot be written, or too many are open."""


def own_trouble(error: OSError, settings: Settings) -> bool:
    """Whether only this job's folder cannot be written: beside it something can.

    Where the home is away for a while, as a network's may be, jobs wait for it.
    """
    if error.errno in EVERYBODYS:
        return False
    try:
        with tempfile.TemporaryFile(dir=settings.home / "jobs") as file:
            file.write(b"x")
    except OSError:
        return False
    return True


def max_restarts(job: Job) -> int:
    """How often a job may be started again by itself."""
    return int(job.spec.get("faults", {}).get("max_restarts", Faults().max_restarts))


def runner_environment(settings: Settings, job: Job) -> dict[str, str]:
    """What a runner is told beside its job: the settings, who it is, and to use the Ray that started it."""
    variables = settings.open_environment() | hand_over(settings, job.id, ray_job_of(job))
    variables |= {"FEDSIM_RAY_ADDRESS": "auto", "FEDSIM_SUBMISSION": ray_job_of(job)}
    if settings.ray_address is None:
        variables["PYTHONPATH"] = package_path()
    return variables


def runner_command(settings: Settings) -> tuple[str, ...]:
    """The command that runs a job, its id to be added: on this machine by this Python."""
    here = settings.ray_address in (None, "auto")
    return (sys.executable if here else "python", "-m", "jobs.run.runner")


class Reconciler:
    """Settles jobs one by one.

    Args:
        store: what is promised.
        settings: for the runner's environment and the logs.
        command: what runs a job; its id is added.
    """

    def __init__(self, store: JobStore, settings: Settings, command: Sequence[str]) -> None:
        self.store, self.settings, self.command = store, settings, tuple(command)
        self._pressed: dict[str, float] = {}
        self._refused: dict[str, int] = {}
        # The last heartbeat of each job, and when it was first seen, by this process's own clock: that of the
        # runner's machine may be minutes away.
        self._beats: dict[str, tuple[datetime, float]] = {}
        # The Ray job of each job that has shown no life yet, and when Ray was first found to run it.
        self._begun: dict[str, tuple[str, float]] = {}

    def settle_all(self, ray: Cluster) -> list[JobRefused | OSError]:
        """Settle every job that should be on the cluster; trouble with one keeps nothing from the others.

        Returns:
            The troubles that `submit` raised, which keep the jobs waiting that met them.

        Raises:
            RayUnavailable: Ray did not answer; what is left is settled the next time.
        """
        active = self.store.list(state=ACTIVE, limit=1000).jobs
        self._forget_all_but({job.id for job in active})
        trouble: list[JobRefused | OSError] = []
        for job in active:
            # One that was never seen before may be what an earlier life left: Ray knows.
            is_known = job.id in self._beats
            if job.state is JobState.CANCELLING or not (self._showed_life(job, FRESH_SECONDS) and is_known):
                try:
                    self._settle(ray, job.id)
                except JobNotFound:
                    log.debug("job %s ended and was deleted in between", job.id)
                except (JobRefused, OSError) as error:
                    trouble.append(error)
            else:
                self._pressed.pop(job.id, None)
        return trouble

    def _forget_all_but(self, active: Collection[str]) -> None:
        self._pressed = {job_id: at for job_id, at in self._pressed.items() if job_id in active}
        self._refused = {job_id: times for job_id, times in self._refused.items() if job_id in active}
        self._beats = {job_id: beat for job_id, beat in self._beats.items() if job_id in active}
        self._begun = {job_id: begun for job_id, begun in self._begun.items() if job_id in active}

    def _showed_life(self, job: Job, seconds: float) -> bool:
        """Whether a job's heartbeat has changed within so many seconds; one seen first counts as changed."""
        if job.heartbeat_at is None:
            return False
        now = time.monotonic()
        beat, seen_at = self._beats.get(job.id, (None, now))
        if beat != job.heartbeat_at:
            seen_at = now
            self._beats[job.id] = job.heartbeat_at, now
        return now - seen_at < seconds

    def submit(self, ray: Cluster, job: Job) -> None:
        """Hand a STARTING job to Ray.

        A job that Ray refuses again and again, while it answers otherwise, has failed, and so has one whose
        folder cannot be written, while others can: that is trouble of this job alone, and raised to nobody.

        Raises:
            RayUnavailable: Ray did not take it; the next settling tries again.
            OSError: nothing can be written in the home; likewise.
        """
        name = ray_job_of(job)
        try:
            environment = runner_environment(self.settings, job)
        except OSError as error:
            if not own_trouble(error, self.settings):
                raise
            log.warning("job %s: its folder cannot be written: %s", job.id, error)
            if self._tried_enough(job):
                what = f"the job's folder {self.settings.home / 'jobs' / job.id} cannot be written"
                self._fail(job, FailureReason.STORAGE_FAILED, f"{what}: {error} (tried {ATTEMPTS} times)")
            return
        try:
            ray.submit(name, [*self.command, job.id], environment)
        except JobRefused as error:
            if not self._tried_enough(job):
                raise
            withdraw(self.settings, job.id, name)
            self._fail(job, FailureReason.INTERNAL, f"{error} (asked {ATTEMPTS} times)")
            return
        self._refused.pop(job.id, None)
        # Only now: a name in the store says that Ray did take the job once.
        if self.store.set_submission(job.id, name, seen=job):
            log.info("job %s submitted as %s", job.id, name)
        elif ray_job_of(self.store.get(job.id)) != name:
            # Another service was first, and by now the job is another Ray job's: this one is nobody's, and
            # its runner would find that out by itself.
            withdraw(self.settings, job.id, name)
            ray.stop(name)

    def _settle(self, ray: Cluster, job_id: str) -> None:
        name = ray_job_of(self.store.get(job_id))
        found = ray.find(name)
        # The store is read after Ray: a runner writes how it ended before it ends, never the other way round.
        job = self.store.get(job_id)
        if job.state not in ACTIVE or ray_job_of(job) != name:
            return
        if found is None or found.ended:
            withdraw(self.settings, job.id, name)
        is_noted = found is None or job.submission_id is not None
        if not (is_noted or self.store.set_submission(job.id, name, seen=job)):
            # Another service was first: what it made of the job is seen the next time.
            return
        if found is None:
            self._settle_unknown(ray, job)
        elif found.ended:
            self._settle_ended(ray, job, found)
        elif job.state is JobState.CANCELLING:
            self._press(ray, job, "it does not cancel itself", CANCEL_SECONDS, CANCEL_SECONDS)
        elif (why := self._hangs(job)) is not None:
            self._press(ray, job, why, CONFIRM_SECONDS, STOP_SECONDS)

    def _hangs(self, job: Job) -> str | None:
        """Why a job that Ray believes to run seems to hang; None where it does not."""
        if job.heartbeat_at is not None:
            silent = not self._showed_life(job, SILENT_SECONDS)
            return f"it has shown no life for {SILENT_SECONDS:g} s" if silent else None
        name, now = ray_job_of(job), time.monotonic()
        known, found_at = self._begun.get(job.id, (None, now))
        if known != name:
            found_at = now
            self._begun[job.id] = name, now
        late = now - found_at > BEGIN_SECONDS
        return f"it has shown no life in its first {BEGIN_SECONDS:g} s" if late else None

    def _settle_unknown(self, ray: Cluster, job: Job) -> None:
        """Ray has never heard of it, or is another Ray than the one that ran it."""
        if job.submission_id is not None and self._showed_life(job, GONE_SECONDS):
            return
        if job.state is JobState.CANCELLING:
            self.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
        elif job.submission_id is None:
            self.submit(ray, job)
        else:
            self._again(ray, job, "the Ray cluster that ran this job is gone")

    def _settle_ended(self, ray: Cluster, job: Job, found: RayJob) -> None:
        """Its process has ended and has not said how."""
        if job.state is JobState.CANCELLING:
            self.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
            return
        if found.exit_code == NO_ANSWER:
            what = "the store did not answer the job's process, which gave up; its log says more"
            self._again(ray, job, what)
            return
        said = ray.log_tail(ray_job_of(job)) or found.message
        if found.exit_code == NO_ROOM:
            what = "the store's disk was full, so that nothing could be written down; the process said last"
            self._fail(job, FailureReason.STORAGE_FAILED, f"{what}:\n{said}")
            return
        if found.exit_code is not None and 0 <= found.exit_code < 128:
            what = f"the job's process ended with exit code {found.exit_code} before the job was done"
            self._fail(job, FailureReason.INTERNAL, f"{what}; it said last:\n{said}")
        else:
            what = "the job's process was killed before the job was done"
            self._again(ray, job, f"{what}; it said last:\n{said}")

    def _again(self, ray: Cluster, job: Job, what: str) -> None:
        """Have a job whose process is gone go on from its checkpoint in another one, if it may once more."""
        limit, name = max_restarts(job), ray_job_of(job)
        if self.store.restart(job.id, limit, what[-4000:], lost=name):
            log.warning("job %s starts again: %s", job.id, what)
            self._log(job, "WARNING", f"starting again: {what}")
            self.submit(ray, self.store.get(job.id))
        elif job.restarts >= limit:
            restarts = f"{limit} restart{'s' * (limit != 1)}"
            self._fail(job, FailureReason.HEARTBEAT_LOST, f"{what}\n(after {restarts}, as many as may be)")

    def _tried_enough(self, job: Job) -> bool:
        """Count one more time that a job could not be handed to Ray; whether it was the last."""
        self._refused[job.id] = self._refused.get(job.id, 0) + 1
        return self._refused[job.id] >= ATTEMPTS

    def _fail(self, job: Job, reason: FailureReason, message: str) -> None:
        if self.store.advance(job.id, STARTED, JobState.FAILED, reason=reason, message=message[-4000:]):
            log.warning("job %s failed: %s", job.id, message)
            self._log(job, "ERROR", message)

    def _log(self, job: Job, level: str, message: str) -> None:
        """A line in the job's own log, whose process cannot write it any more; none on a full disk."""
        with contextlib.suppress(OSError):
            path = self.settings.log_path(job.id)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {level} {message}\n")

    def _press(self, ray: Cluster, job: Job, why: str, first: float, again: float) -> None:
        """Have Ray end a job: so many seconds from now, and again after so many more."""
        now = time.monotonic()
        if now < self._pressed.setdefault(job.id, now + first):
            return
        self._pressed[job.id] = now + again
        log.warning("job %s: %s; Ray is asked to end it", job.id, why)
        ray.stop(ray_job_of(job))
        self._log(job, "WARNING", f"{why}: Ray is asked to end this process")
