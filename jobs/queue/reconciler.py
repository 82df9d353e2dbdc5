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
from jobs.run.job_cluster import EXIT_DISK_FULL, EXIT_NO_ANSWER, JobCluster, RayJob
from jobs.run.runner_secrets import remove_runner_secrets, write_runner_secrets
from jobs.settings import Settings
from jobs.spec.run_fields import FaultsSection
from jobs.store.job_store import JobStore
from jobs.store.records import Job, get_ray_job_id
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

MAX_ATTEMPTS = 3
"""How often a job is tried that a Ray which answers refuses, or whose folder cannot be written."""

SHARED_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Troubles with files that are not one job's: the disk is full or cannot be written, or too many are open."""


def is_only_job_folder_broken(error: OSError, settings: Settings) -> bool:
    """Whether only this job's folder cannot be written: beside it something can.

    Where the home is away for a while, as a network's may be, jobs wait for it.
    """
    if error.errno in SHARED_DISK_ERRNOS:
        return False
    try:
        with tempfile.TemporaryFile(dir=settings.home / "jobs") as file:
            file.write(b"x")
    except OSError:
        return False
    return True


def max_restarts(job: Job) -> int:
    """How often a job may be started again by itself."""
    return int(job.spec.get("faults", {}).get("max_restarts", FaultsSection().max_restarts))


def runner_environment(settings: Settings, job: Job) -> dict[str, str]:
    """What a runner is told beside its job: the settings, who it is, and to use the Ray that started it."""
    variables = settings.public_environment() | write_runner_secrets(settings, job.id, get_ray_job_id(job))
    variables |= {"FEDSIM_RAY_ADDRESS": "auto", "FEDSIM_SUBMISSION": get_ray_job_id(job)}
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
        self._stop_deadlines: dict[str, float] = {}
        self._refusal_counts: dict[str, int] = {}
        # The last heartbeat of each job, and when it was first seen, by this process's own clock: that of the
        # runner's machine may be minutes away.
        self._heartbeats: dict[str, tuple[datetime, float]] = {}
        # The Ray job of each job that has shown no life yet, and when Ray was first found to run it.
        self._first_seen: dict[str, tuple[str, float]] = {}

    def reconcile_jobs(self, ray: JobCluster) -> list[JobRefused | OSError]:
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
            is_known = job.id in self._heartbeats
            if job.state is JobState.CANCELLING or not (
                self._has_fresh_heartbeat(job, FRESH_SECONDS) and is_known
            ):
                try:
                    self._reconcile_job(ray, job.id)
                except JobNotFound:
                    log.debug("job %s ended and was deleted in between", job.id)
                except (JobRefused, OSError) as error:
                    trouble.append(error)
            else:
                self._stop_deadlines.pop(job.id, None)
        return trouble

    def _forget_all_but(self, active: Collection[str]) -> None:
        self._stop_deadlines = {job_id: at for job_id, at in self._stop_deadlines.items() if job_id in active}
        self._refusal_counts = {
            job_id: times for job_id, times in self._refusal_counts.items() if job_id in active
        }
        self._heartbeats = {job_id: beat for job_id, beat in self._heartbeats.items() if job_id in active}
        self._first_seen = {job_id: begun for job_id, begun in self._first_seen.items() if job_id in active}

    def _has_fresh_heartbeat(self, job: Job, seconds: float) -> bool:
        """Whether a job's heartbeat has changed within so many seconds; one seen first counts as changed."""
        if job.heartbeat_at is None:
            return False
        now = time.monotonic()
        beat, seen_at = self._heartbeats.get(job.id, (None, now))
        if beat != job.heartbeat_at:
            seen_at = now
            self._heartbeats[job.id] = job.heartbeat_at, now
        return now - seen_at < seconds

    def submit(self, ray: JobCluster, job: Job) -> None:
        """Hand a STARTING job to Ray.

        A job that Ray refuses again and again, while it answers otherwise, has failed, and so has one whose
        folder cannot be written, while others can: that is trouble of this job alone, and raised to nobody.

        Raises:
            RayUnavailable: Ray did not take it; the next settling tries again.
            OSError: nothing can be written in the home; likewise.
        """
        name = get_ray_job_id(job)
        try:
            environment = runner_environment(self.settings, job)
        except OSError as error:
            if not is_only_job_folder_broken(error, self.settings):
                raise
            log.warning("job %s: its folder cannot be written: %s", job.id, error)
            if self._count_refusal(job):
                what = f"the job's folder {self.settings.home / 'jobs' / job.id} cannot be written"
                self._fail_job(
                    job, FailureReason.STORAGE_FAILED, f"{what}: {error} (tried {MAX_ATTEMPTS} times)"
                )
            return
        try:
            ray.submit(name, [*self.command, job.id], environment)
        except JobRefused as error:
            if not self._count_refusal(job):
                raise
            remove_runner_secrets(self.settings, job.id, name)
            self._fail_job(job, FailureReason.INTERNAL, f"{error} (asked {MAX_ATTEMPTS} times)")
            return
        self._refusal_counts.pop(job.id, None)
        # Only now: a name in the store says that Ray did take the job once.
        if self.store.set_submission(job.id, name, seen=job):
            log.info("job %s submitted as %s", job.id, name)
        elif get_ray_job_id(self.store.get(job.id)) != name:
            # Another service was first, and by now the job is another Ray job's: this one is nobody's, and
            # its runner would find that out by itself.
            remove_runner_secrets(self.settings, job.id, name)
            ray.stop(name)

    def _reconcile_job(self, ray: JobCluster, job_id: str) -> None:
        name = get_ray_job_id(self.store.get(job_id))
        found = ray.find(name)
        # The store is read after Ray: a runner writes how it ended before it ends, never the other way round.
        job = self.store.get(job_id)
        if job.state not in ACTIVE or get_ray_job_id(job) != name:
            return
        if found is None or found.ended:
            remove_runner_secrets(self.settings, job.id, name)
        is_noted = found is None or job.submission_id is not None
        if not (is_noted or self.store.set_submission(job.id, name, seen=job)):
            # Another service was first: what it made of the job is seen the next time.
            return
        if found is None:
            self._handle_unknown_job(ray, job)
        elif found.ended:
            self._handle_ended_job(ray, job, found)
        elif job.state is JobState.CANCELLING:
            self._stop_overdue_job(ray, job, "it does not cancel itself", CANCEL_SECONDS, CANCEL_SECONDS)
        elif (why := self._find_hang_reason(job)) is not None:
            self._stop_overdue_job(ray, job, why, CONFIRM_SECONDS, STOP_SECONDS)

    def _find_hang_reason(self, job: Job) -> str | None:
        """Why a job that Ray believes to run seems to hang; None where it does not."""
        if job.heartbeat_at is not None:
            silent = not self._has_fresh_heartbeat(job, SILENT_SECONDS)
            return f"it has shown no life for {SILENT_SECONDS:g} s" if silent else None
        name, now = get_ray_job_id(job), time.monotonic()
        known, found_at = self._first_seen.get(job.id, (None, now))
        if known != name:
            found_at = now
            self._first_seen[job.id] = name, now
        late = now - found_at > BEGIN_SECONDS
        return f"it has shown no life in its first {BEGIN_SECONDS:g} s" if late else None

    def _handle_unknown_job(self, ray: JobCluster, job: Job) -> None:
        """Ray has never heard of it, or is another Ray than the one that ran it."""
        if job.submission_id is not None and self._has_fresh_heartbeat(job, GONE_SECONDS):
            return
        if job.state is JobState.CANCELLING:
            self.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
        elif job.submission_id is None:
            self.submit(ray, job)
        else:
            self._restart_job(ray, job, "the Ray cluster that ran this job is gone")

    def _handle_ended_job(self, ray: JobCluster, job: Job, found: RayJob) -> None:
        """Its process has ended and has not said how."""
        if job.state is JobState.CANCELLING:
            self.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
            return
        if found.exit_code == EXIT_NO_ANSWER:
            what = "the store did not answer the job's process, which gave up; its log says more"
            self._restart_job(ray, job, what)
            return
        said = ray.read_log_tail(get_ray_job_id(job)) or found.message
        if found.exit_code == EXIT_DISK_FULL:
            what = "the store's disk was full, so that nothing could be written down; the process said last"
            self._fail_job(job, FailureReason.STORAGE_FAILED, f"{what}:\n{said}")
            return
        if found.exit_code is not None and 0 <= found.exit_code < 128:
            what = f"the job's process ended with exit code {found.exit_code} before the job was done"
            self._fail_job(job, FailureReason.INTERNAL, f"{what}; it said last:\n{said}")
        else:
            what = "the job's process was killed before the job was done"
            self._restart_job(ray, job, f"{what}; it said last:\n{said}")

    def _restart_job(self, ray: JobCluster, job: Job, what: str) -> None:
        """Have a job whose process is gone go on from its checkpoint in another one, if it may once more."""
        limit, name = max_restarts(job), get_ray_job_id(job)
        if self.store.restart(job.id, limit, what[-4000:], lost=name):
            log.warning("job %s starts again: %s", job.id, what)
            self._append_to_job_log(job, "WARNING", f"starting again: {what}")
            self.submit(ray, self.store.get(job.id))
        elif job.restarts >= limit:
            restarts = f"{limit} restart{'s' * (limit != 1)}"
            self._fail_job(
                job, FailureReason.HEARTBEAT_LOST, f"{what}\n(after {restarts}, as many as may be)"
            )

    def _count_refusal(self, job: Job) -> bool:
        """Count one more time that a job could not be handed to Ray; whether it was the last."""
        self._refusal_counts[job.id] = self._refusal_counts.get(job.id, 0) + 1
        return self._refusal_counts[job.id] >= MAX_ATTEMPTS

    def _fail_job(self, job: Job, reason: FailureReason, message: str) -> None:
        if self.store.change_state(job.id, STARTED, JobState.FAILED, reason=reason, message=message[-4000:]):
            log.warning("job %s failed: %s", job.id, message)
            self._append_to_job_log(job, "ERROR", message)

    def _append_to_job_log(self, job: Job, level: str, message: str) -> None:
        """A line in the job's own log, whose process cannot write it any more; none on a full disk."""
        with contextlib.suppress(OSError):
            path = self.settings.log_path(job.id)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {level} {message}\n")

    def _stop_overdue_job(self, ray: JobCluster, job: Job, why: str, first: float, again: float) -> None:
        """Have Ray end a job: so many seconds from now, and again after so many more."""
        now = time.monotonic()
        if now < self._stop_deadlines.setdefault(job.id, now + first):
            return
        self._stop_deadlines[job.id] = now + again
        log.warning("job %s: %s; Ray is asked to end it", job.id, why)
        ray.stop(get_ray_job_id(job))
        self._append_to_job_log(job, "WARNING", f"{why}: Ray is asked to end this process")
