"""`python -m jobs.run.runner JOB_ID`: the process that runs a job.

The runner starts the coordinator, and writes every round to the store as it ends. It needs the store and
Ray, and never the API: jobs go on while no API runs. With a local Ray it is no job of Ray, but a fork of
`jobs.run.forks.fork_server`. The runner of a short job trains in its own process, and imports no Ray.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedsim.base.error_attribution import escape_surrogates
from fedsim.engine.stopping import RunEnd
from fedsim.errors import FedsimError, SpecError, StoreUnusable
from jobs.home_permissions import PRIVATE_UMASK
from jobs.run.artifacts import save_model, save_spec
from jobs.run.checkpoint_policy import make_checkpoint_policy
from jobs.run.job_cluster import EXIT_NO_ANSWER, EXIT_STORE_UNUSABLE, IN_PROCESS_VARIABLE
from jobs.run.job_listener import JobListener
from jobs.run.job_watcher import JobWatcher, find_idle_reason
from jobs.run.ledger import StoreLedger, find_no_answer_message, retry_store_call
from jobs.run.restarts import RunWithRestarts
from jobs.run.runner_secrets import read_runner_settings
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import list_plugins, resolve_spec
from jobs.store.job_store import JobStore
from jobs.store.states import FINAL, STARTED, FailureReason, JobState

log = logging.getLogger("fedsim.runner")


def run_job(
    job_id: str, settings: Settings, ray_job_id: str | None = None, *, in_process: bool = False
) -> JobState:
    """Run a job to its end, and return its final state.

    Do nothing if the job has ended, or if another process runs it.

    Args:
        job_id: the job.
        settings: where the store, data and Ray are.
        ray_job_id: the Ray job of this process, if it is one.
        in_process: train in this process, without Ray.

    Raises:
        JobNotFound: if the store has no such job.
        StoreUnusable: if the job's end could not be written to the store.
        SQLAlchemyError, StoreError: if the store did not answer for too long; see `retry_store_call`.
    """
    store = retry_store_call(lambda: JobStore.open(settings.database_url))
    job = retry_store_call(lambda: store.get(job_id))
    if reason := find_idle_reason(job, ray_job_id):
        log.info(reason)
        return job.state
    watcher = JobWatcher(store, job_id, ray_job_id)
    try:
        end = _run_rounds(job_id, settings, store, watcher, in_process=in_process)
        # The watcher must not take the final state, written next, for the work of another process.
        watcher.close()
        retry_store_call(
            lambda: store.change_state(
                job_id,
                JobState.RUNNING,
                JobState.SUCCEEDED,
                message=end.message if end else None,
                ray_job_id=ray_job_id,
            )
        )
    except Exception as error:
        if find_no_answer_message(error) is not None:
            # The job has not failed: another process goes on from its last checkpoint.
            raise
        retry_store_call(watcher.check_store)
        if not watcher.is_stopped:
            _write_failure(store, job_id, error, ray_job_id)
    finally:
        watcher.close()
    if retry_store_call(lambda: store.get(job_id)).state is JobState.CANCELLING:
        retry_store_call(
            lambda: store.change_state(job_id, JobState.CANCELLING, JobState.CANCELLED, ray_job_id=ray_job_id)
        )
    state = retry_store_call(lambda: store.get(job_id)).state
    log.info("ended %s", state)
    return state


def _run_rounds(
    job_id: str, settings: Settings, store: JobStore, watcher: JobWatcher, *, in_process: bool
) -> RunEnd | None:
    """Run the rounds, and write each to the store; after a loss, go on from the last checkpoint.

    Returns:
        Why the run ended; None without a stop rule.
    """
    job = retry_store_call(lambda: store.get(job_id))
    save_spec(settings, job)
    spec = parse_spec(job.spec)
    log.info("job %s: %s on %s", job_id, spec.algorithm.name, spec.data.dataset.name)
    if used := list_plugins(spec):
        log.info("with plug-ins: %s", ", ".join(used))
    experiment = resolve_spec(spec, settings, fetch=True)
    ledger = StoreLedger(store, job_id, watcher.ray_job_id)
    listener = JobListener(job, spec, settings, experiment, ledger, watcher)
    policy = make_checkpoint_policy(spec, settings.checkpoint_url(job_id), resume=True)
    after_loss = job.restarts > 0
    run = RunWithRestarts(experiment, spec, policy, ledger, listener, after_loss=after_loss)
    with listener.track():
        if in_process:
            model = run.run_in_this_process()
        else:
            from jobs.run.ray_connection import connect_to_ray

            with connect_to_ray(settings):
                model = run.run_to_end()
        save_model(settings, job_id, model, listener.notes)
    return ledger.read_end()


def find_failure_reason(error: BaseException) -> FailureReason:
    """Find the reason of a job that failed with this error: the error's `code`, if that is a reason.

    A spec with an error, and thus BAD_DATA, means that the data has changed since the spec was checked.
    """
    if isinstance(error, MemoryError):
        return FailureReason.OUT_OF_MEMORY
    if isinstance(error, SpecError):
        return FailureReason.BAD_DATA
    code = getattr(error, "code", "")
    return FailureReason(code) if code in FailureReason.__members__ else FailureReason.INTERNAL


def _write_failure(store: JobStore, job_id: str, error: Exception, ray_job_id: str | None = None) -> None:
    """Write the failure's reason and message to the store, and its trace to the log."""
    # Without escaping, logging would lose the lines.
    log.error("failed: %s", escape_surrogates(str(error)))
    reason = find_failure_reason(error)
    trace = getattr(error, "trace", "")
    if trace or not isinstance(error, FedsimError):
        log.error("%s", escape_surrogates(trace or "".join(traceback.format_exception(error))))
    message = str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}"
    retry_store_call(
        lambda: store.change_state(
            job_id, STARTED, JobState.FAILED, reason=reason, message=message, ray_job_id=ray_job_id
        )
    )


@contextmanager
def _log_to_job_file(settings: Settings, job_id: str) -> Iterator[None]:
    """Send the log of this process to the job's log file and to standard output."""
    pattern = logging.Formatter("%(asctime)s UTC %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    pattern.converter = time.gmtime  # the service writes to this file too, perhaps in another time zone
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
    """Run the job that the command line names; return 0 if it did not fail."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m jobs.run.runner JOB_ID\n")
        return 2
    settings = read_runner_settings(os.environ)
    os.umask(PRIVATE_UMASK)
    with _log_to_job_file(settings, arguments[0]):
        try:
            state = run_job(
                arguments[0],
                settings,
                os.environ.get("FEDSIM_SUBMISSION"),
                in_process=IN_PROCESS_VARIABLE in os.environ,
            )
        except StoreUnusable as error:
            log.error("the end of the job could not be written to the store: %s", error)
            return EXIT_STORE_UNUSABLE
        except Exception as error:
            if (message := find_no_answer_message(error)) is None:
                raise
            log.error("the database does not answer, and this process ends: %s", message)
            return EXIT_NO_ANSWER
    return int(state is JobState.FAILED or state not in FINAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
