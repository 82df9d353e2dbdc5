"""Reconciler: compares each active job in the store with its Ray job, and repairs the differences.

Any process may die between any two steps: the API, the runner, Ray. Every decision therefore uses the present
state of the store and of Ray, and every change is a compare-and-set on the store. The reconciler remembers
only the last heartbeat of each job, its deadline to end, and the number of Ray's refusals.
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
from jobs.queue.job_size import is_short_job
from jobs.run.job_cluster import (
    EXIT_NO_ANSWER,
    EXIT_STORE_UNUSABLE,
    IN_PROCESS_VARIABLE,
    JobCluster,
    RayJob,
)
from jobs.run.runner_secrets import remove_runner_secrets, write_runner_secrets
from jobs.settings import Settings
from jobs.spec.sections.run_fields import FaultsSection
from jobs.store.job_store import JobStore
from jobs.store.records import Job, get_ray_job_id
from jobs.store.states import ACTIVE, STARTED, FailureReason, JobState

log = logging.getLogger("fedsim.dispatch")

FRESH_SECONDS = 5.0
"""A runner whose heartbeat is younger than this many seconds is alive; Ray need not be asked."""

GONE_SECONDS = 15.0
"""A runner that Ray does not know is gone if it has sent no heartbeat for this many seconds."""

SILENT_SECONDS = 90.0
"""A runner that Ray reports as running hangs if it has sent no heartbeat for this many seconds."""

BEGIN_SECONDS = 300.0
"""Seconds that a running Ray job has for its first heartbeat: Ray places the process, Python loads, and the
runner may wait two minutes for the store."""

CONFIRM_SECONDS = 5.0
"""Seconds in which a runner that seems to hang may still send a heartbeat, as after a machine's sleep."""

CANCEL_SECONDS = 6.0
"""Seconds that a runner has to cancel itself before Ray is asked to end it."""

STOP_SECONDS = 20.0
"""Seconds that Ray has to end a runner that hangs before it is asked again."""

MAX_ATTEMPTS = 3
"""Attempts to submit a job that Ray refuses, or whose folder cannot be written."""

SHARED_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Errors that affect all jobs: the disk is full or read-only, or too many files are open."""


def is_only_job_folder_broken(error: OSError, settings: Settings) -> bool:
    """Return whether only this job's folder cannot be written, and other files beside it can.

    If the whole home is away for a while, as a network disk may be, jobs wait for it.
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
    """Return how often a job may restart by itself."""
    return int(job.spec.get("faults", {}).get("max_restarts", FaultsSection().max_restarts))


def runner_environment(settings: Settings, job: Job) -> dict[str, str]:
    """Make the environment of a runner: the settings, its Ray job's id, and the address of its Ray."""
    variables = settings.public_environment() | write_runner_secrets(settings, job.id, get_ray_job_id(job))
    variables |= {"FEDSIM_RAY_ADDRESS": "auto", "FEDSIM_SUBMISSION": get_ray_job_id(job)}
    if settings.ray_address is None:
        variables["PYTHONPATH"] = package_path()
        if is_short_job(job, settings):
            variables[IN_PROCESS_VARIABLE] = "1"
    return variables


def runner_command(settings: Settings) -> tuple[str, ...]:
    """Return the command that runs a job, without the job's id; with this Python if Ray is here."""
    here = settings.ray_address in (None, "auto")
    return (sys.executable if here else "python", "-m", "jobs.run.runner")


class Reconciler:
    """Reconciles jobs one by one.

    Args:
        store: the jobs.
        settings: for the runner's environment and the logs.
        command: runs a job, whose id is appended.
    """

    def __init__(self, store: JobStore, settings: Settings, command: Sequence[str]) -> None:
        self.store, self.settings, self.command = store, settings, tuple(command)
        self._stop_deadlines: dict[str, float] = {}
        self._refusal_counts: dict[str, int] = {}
        # The last heartbeat of each job, and the time of this process's clock when it was first seen: the
        # clock of the runner's machine may differ by minutes.
        self._heartbeats: dict[str, tuple[datetime, float]] = {}
        # For jobs without a heartbeat: the Ray job, and the time when Ray first reported it as running.
        self._first_seen: dict[str, tuple[str, float]] = {}

    def reconcile_jobs(self, ray: JobCluster) -> list[JobRefused | OSError]:
        """Reconcile every active job; an error with one job does not stop the others.

        Returns:
            The errors that `submit` raised; their jobs wait.

        Raises:
            RayUnavailable: if Ray did not answer; the next pass does the rest.
        """
        active = self.store.list_active()
        self._forget_all_but({job.id for job in active})
        errors: list[JobRefused | OSError] = []
        for job in active:
            # A job that this process has not seen before may be left by an earlier service: ask Ray.
            is_known, cancelling = job.id in self._heartbeats, job.state is JobState.CANCELLING
            if not cancelling and self._has_fresh_heartbeat(job, FRESH_SECONDS) and is_known:
                self._stop_deadlines.pop(job.id, None)
                continue
            try:
                self._reconcile_job(ray, job.id)
            except JobNotFound:
                log.debug("job %s ended and was deleted in between", job.id)
            except (JobRefused, OSError) as error:
                errors.append(error)
        return errors

    def _forget_all_but(self, active: Collection[str]) -> None:
        self._stop_deadlines = {job_id: at for job_id, at in self._stop_deadlines.items() if job_id in active}
        self._refusal_counts = {job_id: n for job_id, n in self._refusal_counts.items() if job_id in active}
        self._heartbeats = {job_id: beat for job_id, beat in self._heartbeats.items() if job_id in active}
        self._first_seen = {job_id: begun for job_id, begun in self._first_seen.items() if job_id in active}

    def _has_fresh_heartbeat(self, job: Job, seconds: float) -> bool:
        """Return whether a job's heartbeat has changed within so many seconds; the first one counts."""
        if job.heartbeat_at is None:
            return False
        now = time.monotonic()
        beat, seen_at = self._heartbeats.get(job.id, (None, now))
        if beat != job.heartbeat_at:
            seen_at = now
            self._heartbeats[job.id] = job.heartbeat_at, now
        return now - seen_at < seconds

    def submit(self, ray: JobCluster, job: Job) -> None:
        """Submit a STARTING job to Ray.

        After `MAX_ATTEMPTS` the job fails if Ray refuses only this job, or if only this job's folder cannot
        be written. Such an error is the job's own, and is not raised.

        Raises:
            RayUnavailable: if Ray did not take the job; the next pass tries again.
            JobRefused: if Ray refused the job; the next pass tries again.
            OSError: if nothing can be written in the home; the next pass tries again.
        """
        ray_job_id = get_ray_job_id(job)
        try:
            environment = runner_environment(self.settings, job)
        except OSError as error:
            if not is_only_job_folder_broken(error, self.settings):
                raise
            log.warning("job %s: its folder cannot be written: %s", job.id, error)
            if self._count_refusal(job):
                what = f"the job's folder {self.settings.home / 'jobs' / job.id} cannot be written: {error}"
                self._fail_job(job, FailureReason.STORAGE_FAILED, f"{what} (tried {MAX_ATTEMPTS} times)")
            return
        try:
            ray.submit(ray_job_id, [*self.command, job.id], environment)
        except JobRefused as error:
            if not self._count_refusal(job):
                raise
            remove_runner_secrets(self.settings, job.id, ray_job_id)
            self._fail_job(job, FailureReason.INTERNAL, f"{error} (asked {MAX_ATTEMPTS} times)")
            return
        self._refusal_counts.pop(job.id, None)
        # Only now, because a submission id in the store means that Ray took the job.
        if self.store.set_ray_job_id(job.id, ray_job_id, seen=job):
            log.info("job %s submitted as %s", job.id, ray_job_id)
        elif get_ray_job_id(self.store.get(job.id)) != ray_job_id:
            # Another service was first, and the job has another Ray job now: end this one. Its runner would
            # also end by itself.
            remove_runner_secrets(self.settings, job.id, ray_job_id)
            ray.stop(ray_job_id)

    def _reconcile_job(self, ray: JobCluster, job_id: str) -> None:
        ray_job_id = get_ray_job_id(self.store.get(job_id))
        found = ray.find(ray_job_id)
        # The store is read after Ray, because a runner writes the job's end before its process ends.
        job = self.store.get(job_id)
        if job.state not in ACTIVE or get_ray_job_id(job) != ray_job_id:
            return
        if found is None or found.ended:
            remove_runner_secrets(self.settings, job.id, ray_job_id)
        is_noted = found is None or job.submission_id is not None
        if not (is_noted or self.store.set_ray_job_id(job.id, ray_job_id, seen=job)):
            # Another service was first: the next pass sees its change.
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
        """Return why a job that Ray reports as running seems to hang; None if it does not."""
        if job.heartbeat_at is not None:
            silent = not self._has_fresh_heartbeat(job, SILENT_SECONDS)
            return f"it has sent no heartbeat for {SILENT_SECONDS:g} s" if silent else None
        ray_job_id, now = get_ray_job_id(job), time.monotonic()
        known, found_at = self._first_seen.get(job.id, (None, now))
        if known != ray_job_id:
            found_at = now
            self._first_seen[job.id] = ray_job_id, now
        late = now - found_at > BEGIN_SECONDS
        return f"it has sent no heartbeat in its first {BEGIN_SECONDS:g} s" if late else None

    def _handle_unknown_job(self, ray: JobCluster, job: Job) -> None:
        """Submit or restart a job that Ray does not know: it is new, or the Ray that ran it is gone."""
        if job.submission_id is not None and self._has_fresh_heartbeat(job, GONE_SECONDS):
            return
        if job.state is JobState.CANCELLING:
            self.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
        elif job.submission_id is None:
            self.submit(ray, job)
        else:
            self._restart_job(ray, job, "the Ray cluster that ran this job is gone")

    def _handle_ended_job(self, ray: JobCluster, job: Job, found: RayJob) -> None:
        """End or restart a job whose process has ended without writing the job's end."""
        if job.state is JobState.CANCELLING:
            self.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
            return
        if found.exit_code == EXIT_NO_ANSWER:
            what = "the database did not answer the job's process, which ended; its log says more"
            self._restart_job(ray, job, what)
            return
        said = ray.read_log_tail(get_ray_job_id(job)) or found.message
        if found.exit_code == EXIT_STORE_UNUSABLE:
            what = "the store could not be used, and nothing was written to it; the process said last"
            self._fail_job(job, FailureReason.STORAGE_FAILED, f"{what}:\n{said}")
            return
        if found.exit_code is not None and 0 <= found.exit_code < 128:
            what = f"the job's process ended with exit code {found.exit_code} before the job was done"
            self._fail_job(job, FailureReason.INTERNAL, f"{what}; it said last:\n{said}")
        else:
            what = "the job's process was killed before the job was done"
            self._restart_job(ray, job, f"{what}; it said last:\n{said}")

    def _restart_job(self, ray: JobCluster, job: Job, what: str) -> None:
        """Restart a job whose process is gone; fail the job if it has had all its restarts."""
        limit, ray_job_id = max_restarts(job), get_ray_job_id(job)
        if self.store.restart(job.id, limit, what, lost_ray_job_id=ray_job_id):
            log.warning("job %s starts again: %s", job.id, what)
            self._append_to_job_log(job, "WARNING", f"starting again: {what}")
            self.submit(ray, self.store.get(job.id))
        elif job.restarts >= limit:
            restarts = f"after {limit} restart{'s' * (limit != 1)}, the limit of faults.max_restarts"
            self._fail_job(job, FailureReason.HEARTBEAT_LOST, f"{what}\n({restarts})")

    def _count_refusal(self, job: Job) -> bool:
        """Count a failed submission; return whether it was the last attempt."""
        self._refusal_counts[job.id] = self._refusal_counts.get(job.id, 0) + 1
        return self._refusal_counts[job.id] >= MAX_ATTEMPTS

    def _fail_job(self, job: Job, reason: FailureReason, message: str) -> None:
        own = get_ray_job_id(job)
        # Another service may have failed the job, and its user resumed it, while this one waited for Ray.
        if self.store.change_state(
            job.id, STARTED, JobState.FAILED, reason=reason, message=message, ray_job_id=own
        ):
            log.warning("job %s failed: %s", job.id, message)
            self._append_to_job_log(job, "ERROR", message)

    def _append_to_job_log(self, job: Job, level: str, message: str) -> None:
        """Add a line to the job's log, which the job's process cannot write any more; skip a full disk."""
        with contextlib.suppress(OSError):
            path = self.settings.log_path(job.id)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC {level} {message}\n")

    def _stop_overdue_job(
        self, ray: JobCluster, job: Job, why: str, grace_seconds: float, repeat_seconds: float
    ) -> None:
        """Ask Ray to end a job `grace_seconds` after the first call, and then every `repeat_seconds`."""
        now = time.monotonic()
        if now < self._stop_deadlines.setdefault(job.id, now + grace_seconds):
            return
        self._stop_deadlines[job.id] = now + repeat_seconds
        log.warning("job %s: %s; Ray is asked to end it", job.id, why)
        ray.stop(get_ray_job_id(job))
        self._append_to_job_log(job, "WARNING", f"{why}: Ray is asked to end this process")
