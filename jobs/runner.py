"""`python -m jobs.runner JOB_ID`: the entry point of a job's Ray job.

It drives the coordinator and writes every round to the store as it ends. It depends on the store and on
Ray, never on the API: while nobody serves, jobs go on.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from safetensors.numpy import save_file

from actors.coordinator import Phase
from fedsim.errors import (
    ClientFailed,
    CohortFailed,
    DataError,
    DoesNotFit,
    FedsimError,
    OutOfMemory,
    PoolFailed,
    SpecError,
)
from jobs.execute import Drive, connected
from jobs.records import RoundRecord
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.states import FINAL, FailureReason, JobState
from jobs.store import JobStore

log = logging.getLogger("fedsim.runner")

WATCH_SECONDS = 0.5
"""How often a runner looks for a wish to cancel, and says that it lives."""

_REASONS: tuple[tuple[type[BaseException], FailureReason], ...] = (
    (OutOfMemory, FailureReason.OUT_OF_MEMORY),
    (MemoryError, FailureReason.OUT_OF_MEMORY),
    (DoesNotFit, FailureReason.DOES_NOT_FIT),
    (ClientFailed, FailureReason.CLIENT_FAILED),
    (CohortFailed, FailureReason.CLIENT_FAILED),
    (PoolFailed, FailureReason.NODE_LOST),
    (DataError, FailureReason.BAD_DATA),
    (SpecError, FailureReason.BAD_DATA),
)


class Watch:
    """A thread that beats the heart and closes the drive when the job is to be cancelled.

    Args:
        store: where the wish is written.
        job_id: the job.
    """

    def __init__(self, store: JobStore, job_id: str) -> None:
        self.store, self.job_id = store, job_id
        self.cancelled = threading.Event()
        self._drive: Drive | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def guard(self, drive: Drive) -> None:
        """Close this drive when the wish comes (or came already)."""
        self._drive = drive
        if self.cancelled.is_set():
            drive.close()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            try:
                self.store.heartbeat(self.job_id)
                state = self.store.get(self.job_id).state
            except Exception as error:
                log.warning("the store did not answer: %s", error)
                continue
            if state is JobState.CANCELLING and not self.cancelled.is_set():
                log.info("cancelling")
                self.cancelled.set()
                if self._drive is not None:
                    self._drive.close()


def run(job_id: str, settings: Settings) -> JobState:
    """Run a job to its end, and return the state that it ended in.

    Raises:
        JobNotFound: if the store has no such job.
    """
    store = JobStore.open(settings.database_url)
    watch = Watch(store, job_id)
    try:
        _drive(job_id, settings, store, watch)
        store.advance(job_id, {JobState.RUNNING}, JobState.SUCCEEDED)
    except Exception as error:
        if not watch.cancelled.is_set():
            _fail(store, job_id, error)
    finally:
        watch.close()
    if store.get(job_id).state is JobState.CANCELLING:
        store.advance(job_id, {JobState.CANCELLING}, JobState.CANCELLED)
    state = store.get(job_id).state
    log.info("ended %s", state)
    return state


def _drive(job_id: str, settings: Settings, store: JobStore, watch: Watch) -> None:
    """Have the rounds run, and write each to the store."""
    job = store.get(job_id)
    spec = parse_spec(job.spec)
    log.info("job %s: %s on %s", job_id, spec.algorithm.name, spec.data.dataset.name)
    experiment = resolve(spec, settings)
    with connected(settings):
        drive = Drive(experiment, spec)
        watch.guard(drive)
        try:
            for step in drive:
                if watch.cancelled.is_set():
                    return
                if isinstance(step, Phase):
                    log.info(step.text)
                    continue
                _record(store, job_id, RoundRecord.model_validate(step.record()))
            if not watch.cancelled.is_set():
                _save_model(settings, job_id, drive.model())
        finally:
            drive.close()


def _record(store: JobStore, job_id: str, record: RoundRecord) -> None:
    if record.round == 1 or store.get(job_id).state is JobState.STARTING:
        store.advance(job_id, {JobState.STARTING}, JobState.RUNNING)
    store.add_round(job_id, record)
    scores = ", ".join(
        f"{name} {value:.4f}" for name, value in record.metrics.items() if isinstance(value, float)
    )
    for client, cause in (record.engine.model_extra or {}).get("client_errors", {}).items():
        log.warning("round %d: client %s was left out: %s", record.round, client, cause)
    log.info(
        "round %d: %s (%.2f s, digest %s)", record.round, scores, record.seconds.total, record.digest[:12]
    )


def _save_model(settings: Settings, job_id: str, model: dict[str, np.ndarray]) -> None:
    """The final global model, beside the job."""
    arrays = {name: np.ascontiguousarray(value) for name, value in model.items()}
    save_file(arrays, settings.job_dir(job_id) / "model.safetensors")


def _fail(store: JobStore, job_id: str, error: Exception) -> None:
    """Write down why, in words for people; the trace goes to the log."""
    log.error("failed: %s", error)
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), FailureReason.INTERNAL)
    trace = getattr(error, "trace", "")
    if trace or not isinstance(error, FedsimError):
        log.error("%s", trace or "".join(traceback.format_exception(error)))
    message = str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}"
    sources = {JobState.STARTING, JobState.RUNNING}
    store.advance(job_id, sources, JobState.FAILED, reason=reason, message=message)


@contextmanager
def _logging(settings: Settings, job_id: str) -> Iterator[None]:
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
        sys.stderr.write("usage: python -m jobs.runner JOB_ID\n")
        return 2
    settings = Settings.from_env()
    with _logging(settings, arguments[0]):
        state = run(arguments[0], settings)
    return int(state is JobState.FAILED or state not in FINAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
