"""`ServiceTrials`: trials that train as jobs of a service, each until a round, then until the next rung."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from fedsim.errors import DataError, DoesNotFit, FedsimError, JobNotFound, SpecError
from jobs.run.run_result import RunResult
from jobs.spec import JobSpec
from jobs.spec.sections.run_fields import Stop
from jobs.spec.submission import MAX_LABEL_VALUE
from jobs.spec.sweep import GROUP, make_label, make_label_key
from jobs.store.records import Job, RoundRecord
from jobs.store.states import FINAL, RESUMABLE, JobState
from jobs.tune.plan import Search
from jobs.tune.trial import FinalScore, Train, TrialScore, TrialWork, read_score

TRIAL, BEST = "trial", "best"
"""A label of the jobs: the number of the trial, or `best` for the run with the test set."""

MOST_VALUES = 28
"""How many labels of a job are values of searched fields."""

NO_VALUES: Mapping[str, Any] = {}

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
"""Seconds between two looks at a job."""


class TrialJob(Protocol):
    """A job of a service, such as `fedsim.FedSimClient().job(...)`."""

    @property
    def job(self) -> Job:
        """The last answer about the job."""

    def refresh(self, *, patient: bool = False) -> Job:
        """Ask the service for the job."""

    def rounds(self, after: int = 0) -> Sequence[RoundRecord]:
        """Read the records of the rounds after one."""

    def resume(self, rounds: int | None = None) -> JobState:
        """Continue the job until a round."""


class Service(Protocol):
    """What a search needs of a service: `fedsim.FedSimClient` has it."""

    def check(self, spec: JobSpec) -> None:
        """Raise SpecError if the service does not accept the spec."""

    def submit(self, spec: JobSpec, *, labels: Mapping[str, str], idempotency_key: str) -> TrialJob:
        """Queue a job, or find the job with this key."""


@dataclass(frozen=True)
class ServiceTrials:
    """Trials that train as jobs of a service.

    A job first ends after the first rung (`stop.round`); a promoted trial resumes it. A key finds the jobs of
    an interrupted search again, and those of an equal search.

    Attributes:
        service: trains the trials.
        search: the plan.
        jobs: how many are queued or run at the same time.
    """

    service: Service
    search: Search
    jobs: int
    _is_over: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def name(self) -> str:
        """The value of the label `group` of all jobs: the name of the spec, and a hash of the plan."""
        return f"{self.search.make_spec({}).name}-{_hash(self.search.to_document())[:8]}"

    def check(self, spec: JobSpec) -> None:
        """Have the service check a spec: it knows its data, its plug-ins and its cluster."""
        self.service.check(spec)

    @contextmanager
    def open(self) -> Iterator[Train]:
        """Return a function that submits or resumes the job of a trial, and waits for its end in a thread."""
        self._is_over.clear()
        with ThreadPoolExecutor(self.jobs) as executor:
            try:
                yield lambda work: executor.submit(self._train, work)
            finally:
                self._is_over.set()  # after Ctrl-C, threads stop waiting; jobs go on

    def run_best(self, spec: JobSpec) -> FinalScore:
        """Run the best spec as a job."""
        self._is_over.clear()
        job = self._submit(spec, BEST)
        if (error := self._wait(job)) is not None:
            raise FedsimError(error, "remove the cause; the same command then resumes the job")
        run = RunResult(spec, list(job.rounds()))
        return FinalScore(run.final, run.records[-1].digest, job=job.job.id)

    def _train(self, work: TrialWork) -> TrialScore:
        """Train a trial until a round, and score it; a failure of the job is a value, not an error."""
        spec = work.spec.model_copy(update={"stop": Stop(round=self.search.rungs[0])})
        try:
            job = self._submit(spec, str(work.trial), work.values)
        except (SpecError, DataError, DoesNotFit) as refusal:
            return TrialScore("", None, error=str(refusal))
        if (error := self._wait(job, work.until)) is not None:
            return TrialScore("", None, error=error, job=job.job.id)
        # A privacy budget may end the job before the round.
        record = job.rounds(min(work.until, job.job.rounds_done) - 1)[0]
        return read_score(record.metrics, record.digest, work.metric)._replace(job=job.job.id)

    def _submit(self, spec: JobSpec, trial: str, values: Mapping[str, Any] = NO_VALUES) -> TrialJob:
        """Queue the job of a trial, or find it; resume one that failed or was cancelled before."""
        key = _hash([self.search.to_document(), trial, spec.model_dump(mode="json", exclude_defaults=True)])
        shown = list(values.items())[:MOST_VALUES]
        labels = {make_label_key(path): make_label(value)[:MAX_LABEL_VALUE] for path, value in shown}
        labels |= {TRIAL: trial, GROUP: self.name}
        job = self.service.submit(spec, labels=labels, idempotency_key=f"tune-{key}")
        if job.job.state in RESUMABLE:
            job.resume()
        return job

    def _wait(self, job: TrialJob, until: int = 0) -> str | None:
        """Wait until a job has succeeded and has a round; return why that never happens, or None.

        A job that has no such round after it was resumed has ended by its privacy budget.
        """
        pause, may_resume = FIRST_PAUSE, True
        while (state := job.job.state) is not JobState.SUCCEEDED or job.job.rounds_done < until:
            if state is JobState.SUCCEEDED and may_resume:
                job.resume(until)
                may_resume = False
            elif state is JobState.SUCCEEDED:
                return None
            elif state in FINAL:
                return f"job {job.job.id} {state}: {job.job.message or 'no message'}"
            if self._is_over.wait(pause):
                raise CancelledError
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                job.refresh(patient=True)
            except JobNotFound:
                return f"job {job.job.id} was deleted"
        return None


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:40]
