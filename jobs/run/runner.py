"""`python -m jobs.run.runner JOB_ID`: the entry point of a job's Ray job.

It drives the coordinator and writes every round to the store as it ends. It depends on the store and on
Ray, never on the API: while nobody serves, jobs go on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedsim.core.personal_scores import PersonalScores
from fedsim.errors import (
    CheckpointError,
    ClientFailed,
    CohortFailed,
    DataError,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    OutOfMemory,
    SpecError,
    StoreFull,
)
from jobs.home_permissions import PRIVATE_UMASK
from jobs.run.artifacts import save_chosen_model, save_model, save_partition, save_personal_scores, save_spec
from jobs.run.checkpointing import make_checkpoint_policy
from jobs.run.job_cluster import EXIT_DISK_FULL, EXIT_NO_ANSWER
from jobs.run.ledger import StoreLedger, find_no_answer_message, retry_store_call
from jobs.run.model_metadata import model_notes
from jobs.run.ray_connection import connect_to_ray
from jobs.run.run_attempts import RESTARTABLE_ERRORS, RunAttempt, RunWithRestarts
from jobs.run.runner_secrets import read_runner_settings
from jobs.run.startup import StartupWaiter, has_free_capacity
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import list_plugins, resolve_spec
from jobs.store.job_store import JobStore
from jobs.store.records import Job, get_ray_job_id
from jobs.store.states import ACTIVE, FINAL, FailureReason, JobState

log = logging.getLogger("fedsim.runner")

WATCH_SECONDS = 0.5
"""How often a runner looks for a wish to cancel, and says that it lives."""

_REASONS: tuple[tuple[type[BaseException], FailureReason], ...] = (
    (OutOfMemory, FailureReason.OUT_OF_MEMORY),
    (MemoryError, FailureReason.OUT_OF_MEMORY),
    (DoesNotFit, FailureReason.DOES_NOT_FIT),
    (ClientFailed, FailureReason.CLIENT_FAILED),
    (CohortFailed, FailureReason.CLIENT_FAILED),
    # Any other PoolFailed is INTERNAL: workers that die again and again on a node that lives.
    *((lost, FailureReason.NODE_LOST) for lost in RESTARTABLE_ERRORS),
    (CheckpointError, FailureReason.STORAGE_FAILED),
    (StoreFull, FailureReason.STORAGE_FAILED),
    (DataError, FailureReason.BAD_DATA),
    (SpecError, FailureReason.BAD_DATA),
)


class JobWatcher:
    """A thread that beats the heart and closes the drive when the job is to end, has ended, or is another's.

    Args:
        store: where the wish is written.
        job_id: the job.
        submission_id: the Ray job that this process is; None where it is not known. When the store names
            another one, this process was given up and somebody else runs the job.
    """

    def __init__(self, store: JobStore, job_id: str, submission_id: str | None = None) -> None:
        self.store, self.job_id, self.submission_id = store, job_id, submission_id
        self.cancelled, self.superseded = False, False
        self._drive: RunAttempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_store, name="watch", daemon=True)
        self._thread.start()

    def watch_attempt(self, drive: RunAttempt) -> None:
        """Close this drive when the wish comes (or came already)."""
        self._drive = drive
        if self.is_stopped:
            drive.close()

    @property
    def is_stopped(self) -> bool:
        """Whether this process is to do no more."""
        return self.cancelled or self.superseded

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _poll_store(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            try:
                self.check_store()
            except Exception as error:
                log.warning("the store did not answer: %s", error)

    def check_store(self) -> None:
        """Ask the store whether this process is to go on, and tell it that it lives."""
        why: str | None = None
        cancelling = False
        try:
            job = self.store.get(self.job_id)
            why, cancelling = find_idle_reason(job, self.submission_id), job.state is JobState.CANCELLING
            if why is None:
                self.store.record_heartbeat(self.job_id)
        except JobNotFound:
            why = "the job has been deleted"
        except StoreFull as error:
            log.warning("nobody hears that this process lives: %s", error)
        if why is not None:
            if not self.superseded:
                self.superseded = True
                self._close_attempt(why)
        elif cancelling and not self.cancelled:
            self.cancelled = True
            self._close_attempt("cancelling")

    def _close_attempt(self, why: str) -> None:
        log.info(why)
        if self._drive is not None:
            self._drive.close()


def find_idle_reason(job: Job, submission_id: str | None) -> str | None:
    """Why a process has nothing to do for a job; None where it has.

    Args:
        job: as the store has it.
        submission_id: the Ray job that the process is; None where it is not known.
    """
    if submission_id not in (None, get_ray_job_id(job)):
        return "another process runs this job by now"
    return None if job.state in ACTIVE else f"the job is {job.state}, and no process is to run it"


def run_job(job_id: str, settings: Settings, submission_id: str | None = None) -> JobState:
    """Run a job to its end, and return the state that it ended in.

    Nothing is done where the job has ended already, or is another process's.

    Args:
        job_id: the job.
        settings: where the store, data and Ray are.
        submission_id: the Ray job that this process is, if it is one.

    Raises:
        JobNotFound: if the store has no such job.
        StoreFull: if its end could not be written down: the store's disk is full.
        SQLAlchemyError, StoreError: if the store did not answer for too long, as with `patiently`.
    """
    store = retry_store_call(lambda: JobStore.open(settings.database_url))
    job = retry_store_call(lambda: store.get(job_id))
    if why := find_idle_reason(job, submission_id):
        log.info(why)
        return job.state
    watch = JobWatcher(store, job_id, submission_id)
    try:
        _attempt(job_id, settings, store, watch)
        # It would take the end that is written next for somebody else's.
        watch.close()
        retry_store_call(
            lambda: store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED, holder=submission_id)
        )
    except Exception as error:
        if find_no_answer_message(error) is not None:
            # No failure of the job: from its last checkpoint it goes on in another process.
            raise
        retry_store_call(watch.check_store)
        if not watch.is_stopped:
            _write_failure(store, job_id, error, submission_id)
    finally:
        watch.close()
    if retry_store_call(lambda: store.get(job_id)).state is JobState.CANCELLING:
        retry_store_call(
            lambda: store.change_state(job_id, JobState.CANCELLING, JobState.CANCELLED, holder=submission_id)
        )
    state = retry_store_call(lambda: store.get(job_id)).state
    log.info("ended %s", state)
    return state


def _attempt(job_id: str, settings: Settings, store: JobStore, watch: JobWatcher) -> None:
    """Have the rounds run, and write each to the store; after a loss, go on from the last checkpoint."""
    job = retry_store_call(lambda: store.get(job_id))
    save_spec(settings, job)
    spec = parse_spec(job.spec)
    log.info("job %s: %s on %s", job_id, spec.algorithm.name, spec.data.dataset.name)
    if used := list_plugins(spec):
        log.info("with plug-ins: %s", ", ".join(used))
    experiment, notes = resolve_spec(spec, settings), dict[str, str]()

    def may_restart(error: FedsimError) -> bool:
        if watch.is_stopped:
            return False
        log.warning("lost: %s", error)
        return book.restart_after_loss(spec.faults.max_restarts, error)

    def save_final_files(drive: RunAttempt) -> None:
        about = {"seed": spec.seed, "clients": spec.clients.total, "data": job.spec["data"]}
        about["validation"] = spec.evaluation.validation
        save_partition(settings, job_id, drive.get_partition(), about)
        notes.update(model_notes(spec, drive.get_dataset_metadata(), book.count_rounds()))
        save_chosen_model(settings, job_id, drive.get_chosen_model(), notes)

    def write_personal_scores(scores: PersonalScores) -> None:
        save_personal_scores(settings, job_id, scores.to_csv())

    keeping = make_checkpoint_policy(spec, settings.checkpoint_url(job_id), resume=True)
    book = StoreLedger(store, job_id, watch.submission_id)
    setting_up = StartupWaiter(
        lambda text: retry_store_call(lambda: store.add_warning(job_id, text)),
        lambda: watch.is_stopped,
        lambda: has_free_capacity(experiment, spec),
    )
    with connect_to_ray(settings):
        run = RunWithRestarts(
            experiment,
            spec,
            keeping,
            book,
            on_status=setting_up.log_status,
            on_attempt=watch.watch_attempt,
            may_restart=may_restart,
            on_end=save_final_files,
            on_personal=write_personal_scores,
            may_wait_for_capacity=setting_up.wait_for_capacity,
            after_loss=job.restarts > 0,
        )
        model = run.run_to_end()
    save_model(settings, job_id, model, notes)


def _write_failure(store: JobStore, job_id: str, error: Exception, holder: str | None = None) -> None:
    """Write down why, in words for people; the trace goes to the log."""
    log.error("failed: %s", error)
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), FailureReason.INTERNAL)
    trace = getattr(error, "trace", "")
    if trace or not isinstance(error, FedsimError):
        log.error("%s", trace or "".join(traceback.format_exception(error)))
    message = str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}"
    sources = {JobState.STARTING, JobState.RUNNING}
    retry_store_call(
        lambda: store.change_state(
            job_id, sources, JobState.FAILED, reason=reason, message=message, holder=holder
        )
    )


@contextmanager
def _log_to_job_file(settings: Settings, job_id: str) -> Iterator[None]:
    """This process's log, to the job's own file and to standard output."""
    pattern = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handlers: list[logging.Handler] = [
        logging.FileHandler(settings.log_path(job_id), encoding="utf-8"),
        logging.StreamHandler(sys.stdout),
    ]
    root = logging.getLogger("fedsim")
    root.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(pattern)
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def main(arguments: list[str]) -> int:
    """Run the job named on the command line; 0 if it did not fail."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m jobs.run.runner JOB_ID\n")
        return 2
    settings = read_runner_settings(os.environ)
    os.umask(PRIVATE_UMASK)
    with _log_to_job_file(settings, arguments[0]):
        try:
            state = run_job(arguments[0], settings, os.environ.get("FEDSIM_SUBMISSION"))
        except StoreFull as error:
            log.error("the store does not hear how the job ended: %s", error)
            return EXIT_DISK_FULL
        except Exception as error:
            if (words := find_no_answer_message(error)) is None:
                raise
            log.error("the store does not answer, and this process gives up: %s", words)
            return EXIT_NO_ANSWER
    return int(state is JobState.FAILED or state not in FINAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
