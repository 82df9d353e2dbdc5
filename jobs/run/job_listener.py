"""JobListener: what a job's run writes besides its rounds: states, warnings, restarts and files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.experiment import Experiment
from fedsim.errors import FedsimError, NoCapacityNow, SettingsError
from jobs.run.artifacts import (
    PARTITION,
    SPEC,
    list_stored_artifacts,
    open_artifact,
    save_chosen_model,
    save_partition,
    save_personal_scores,
)
from jobs.run.checkpoint_policy import describe_last_checkpoint
from jobs.run.job_watcher import JobWatcher
from jobs.run.ledger import StoreLedger, retry_store_call
from jobs.run.listener import RunListener
from jobs.run.model_metadata import make_model_notes
from jobs.run.run_steps import Attempt
from jobs.run.startup import StartupWaiter, has_free_capacity
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.spec_text import dump_spec
from jobs.store.records import Job, RoundRecord
from jobs.tracking.tracked_run import TrackedRun
from jobs.tracking.trackers import Trackers, check_trackers

log = logging.getLogger("fedsim.runner")


class JobListener(RunListener):
    """The listener of a job's run, in the job's own process.

    Args:
        job: as the store had it at the start.
        spec: of the job.
        settings: where the job's files go.
        experiment: of the spec.
        ledger: the job's rounds and state in the store.
        watcher: closes the attempt when the job is cancelled.

    Attributes:
        notes: the metadata of the model files; {} before the end of the run.
    """

    def __init__(
        self,
        job: Job,
        spec: JobSpec,
        settings: Settings,
        experiment: Experiment,
        ledger: StoreLedger,
        watcher: JobWatcher,
    ) -> None:
        self.job, self.spec, self.settings = job, spec, settings
        self.ledger, self.watcher = ledger, watcher
        self.notes: dict[str, str] = {}
        self.trackers = self._open_trackers()
        self.waiter = StartupWaiter(
            self._write_capacity_warning,
            lambda: watcher.is_stopped,
            lambda: has_free_capacity(experiment, spec),
        )

    def on_status(self, text: str) -> None:
        """Log the status; while the job starts, its readers see it as what the job waits for."""
        if self.waiter.log_status(text):
            self._write_start_step(text)

    def on_attempt(self, attempt: Attempt) -> None:
        """Have the watcher close the attempt when the job is to stop."""
        self.watcher.watch_attempt(attempt)

    def on_running(self) -> None:
        """Set the job's state to RUNNING."""
        self.ledger.mark_running()

    def on_round(self, record: RoundRecord) -> None:
        """Hand the record to the trackers of the service."""
        self.trackers.log_round(record)

    @contextmanager
    def track(self) -> Iterator[None]:
        """End the run in the trackers, with its files, when the block ends."""
        try:
            yield
        except BaseException:
            self.trackers.end("KILLED" if self.watcher.is_stopped else "FAILED")
            raise
        kept = list_stored_artifacts(self.settings, self.job.id) if self.settings.track else ()
        files = {SPEC: dump_spec(self.job.spec).encode()}
        for name in (name for name in kept if name != PARTITION):
            files[name] = b"".join(open_artifact(self.settings, self.job.id, name)[1])
        self.trackers.end("FINISHED", files)

    def on_personal_scores(self, scores: PersonalScores) -> None:
        """Write `personal.csv`."""
        save_personal_scores(self.settings, self.job.id, scores.to_csv())

    def on_end(self, attempt: Attempt) -> None:
        """Write the partition and the model that validation chose."""
        spec, job_id = self.spec, self.job.id
        about = {"seed": spec.seed, "clients": spec.clients.total, "data": self.job.spec["data"]}
        about["validation"] = spec.evaluation.validation
        save_partition(self.settings, job_id, attempt.get_partition(), about)
        end = self.ledger.read_end()
        round = end.result_round if end else self.ledger.count_rounds()
        self.notes = make_model_notes(spec, attempt.get_dataset_metadata(), round)
        save_chosen_model(self.settings, job_id, attempt.get_chosen_model(), self.notes)

    def may_restart(self, error: FedsimError) -> bool:
        """Count the restart in the store, and return whether the job may restart."""
        if self.watcher.is_stopped:
            return False
        log.warning("lost: %s", error)
        url = self.settings.checkpoint_url(self.job.id)
        place = describe_last_checkpoint(url, self.spec.checkpoint.every)
        message = f"going on from {place} after a loss: {error}"
        return self.ledger.restart_after_loss(self.spec.faults.max_restarts, message)

    def _open_trackers(self) -> Trackers:
        names = self.settings.track
        run = TrackedRun.from_spec(self.job.id, self.spec, self.settings.job_dir(self.job.id))
        try:
            check_trackers(names)
        except SettingsError as error:
            self._write_warning(f"the run is not tracked: {error}")
            names = ()
        # Callers of the service read the warnings.
        trackers = Trackers(names, run, self._write_warning, show_errors=False)
        # A runner before this one may have ended before a tracker took all its rounds.
        for record in self.ledger.read_rounds(0) if names else ():
            trackers.log_round(record)
        return trackers

    def _write_warning(self, text: str) -> None:
        log.warning(text)
        retry_store_call(lambda: self.ledger.store.add_warning(self.job.id, text))

    def _write_start_step(self, text: str) -> None:
        retry_store_call(lambda: self.ledger.store.write_start_step(self.job.id, text))

    def _write_capacity_warning(self, text: str) -> None:
        retry_store_call(lambda: self.ledger.store.add_warning(self.job.id, text))
        self._write_start_step(text)

    def may_wait_for_capacity(self, error: NoCapacityNow) -> bool:
        """Wait until the cluster seems to have enough free resources; return whether to try again."""
        return self.waiter.wait_for_capacity(error)
