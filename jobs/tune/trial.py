"""Train one trial until a round, from its last checkpoint, and score it on the validation set alone.

`LocalTrials` trains in processes of this machine; `jobs.tune.service_trials` trains as jobs of a service.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.engine.evaluation.model_selection import PERSONAL_VALIDATION, choose_best, list_candidates
from fedsim.engine.initial_state import make_state_template
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import one_thread
from fedsim.errors import FedsimError, FieldError, SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.run.listener import RunListener
from jobs.run.run_result import RunResult
from jobs.run.without_ray.in_process import run_in_process
from jobs.run.without_ray.populations import Populations
from jobs.run.without_ray.processes import open_processes
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.resolve import resolve_spec
from jobs.spec.sections.run_fields import Checkpointing, Stop


class TrialWork(NamedTuple):
    """A trial and the round to which it trains.

    Attributes:
        trial: its number.
        values: of the searched fields, by path.
        spec: of the trial (`make_trial_spec`), with all its rounds.
        url: the folder of its checkpoints.
        until: the round after which it is scored.
        metric: on the validation set; None for the metric that chooses models.
    """

    trial: int
    values: Mapping[str, Any]
    spec: JobSpec
    url: str
    until: int
    metric: str | None


class TrialScore(NamedTuple):
    """The outcome of a trial after a round.

    Attributes:
        metric: the name of the score; "" if the trial failed.
        value: the score; None if the trial failed, or has no finite score.
        digest: of the server state.
        error: why the trial failed; "" if it did not.
        job: the id of its job on a service; "" without one.
    """

    metric: str
    value: float | None
    digest: str = ""
    error: str = ""
    job: str = ""


class FinalScore(NamedTuple):
    """The outcome of the best spec, run once more with the test set.

    Attributes:
        metrics: after the last round.
        digest: of the server state.
        run: the whole run; None for a job of a service, which keeps it.
        job: the id of its job; "" without one.
    """

    metrics: Mapping[str, Any]
    digest: str
    run: RunResult | None = None
    job: str = ""


Train: TypeAlias = Callable[[TrialWork], Future[TrialScore]]
"""Begin to train a trial."""


class Trials(Protocol):
    """The place where trials train."""

    def check(self, spec: JobSpec) -> None:
        """Check a spec before anything trains.

        Raises:
            SpecError: with every fault.
        """

    def open(self) -> AbstractContextManager[Train]:
        """Return a function that trains trials, several at a time."""

    def run_best(self, spec: JobSpec) -> FinalScore:
        """Run the best spec once, with the test set.

        Raises:
            FedsimError: the run failed.
        """


def is_personal(metric: str | None) -> bool:
    """Return whether this metric compares trials by the personal models."""
    return metric is not None and metric.startswith(PERSONAL_VALIDATION)


def make_trial_spec(spec: JobSpec, metric: str | None = None) -> JobSpec:
    """Return the spec of a trial: the same rounds, all of them, without a score on test examples.

    Args:
        spec: with the values of the trial.
        metric: that compares the trials; the personal models are scored only for one of theirs.
    """
    untested = {"test": False, "personal": "last" if is_personal(metric) else "never", "membership": False}
    evaluation = spec.evaluation.model_copy(update=untested)
    changes: dict[str, Any] = {"evaluation": evaluation, "stop": Stop()}
    if is_personal(metric) and "validation" not in spec.data.tests.also:
        tests = spec.data.tests.model_copy(update={"also": (*spec.data.tests.also, "validation")})
        changes["data"] = spec.data.model_copy(update={"tests": tests})
    if not spec.checkpoint.every:
        changes["checkpoint"] = Checkpointing(every=spec.rounds)  # promoted trials go on from checkpoints
    return spec.model_copy(update=changes)


def make_final_spec(spec: JobSpec, metric: str) -> JobSpec:
    """Return the spec of the run with the test set: it scores what the trials were compared by.

    Args:
        spec: with the best values.
        metric: that compared the trials.
    """
    if not is_personal(metric) or spec.evaluation.personal in ("last", "always"):
        return spec
    evaluation = spec.evaluation.model_copy(update={"personal": "last"})
    return spec.model_copy(update={"evaluation": evaluation})


class Trainer:
    """Trains trials in this process, one client after another; trials with the same data share it.

    Args:
        settings: where the data is.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.populations = settings, Populations()

    def __call__(self, work: TrialWork) -> TrialScore:
        """Train a trial until a round, and score it; a failure of the run is a value, not an error."""
        try:
            with one_thread():
                record = self._train(work)
        except FedsimError as error:
            return TrialScore("", None, error=str(error))
        except Exception as error:  # one broken trial must not end the search
            return TrialScore("", None, error=f"{type(error).__name__}: {error}")
        return read_score(record["metrics"], record["digest"], work.metric)

    def _train(self, work: TrialWork) -> Mapping[str, Any]:
        """Return the record of the round, or of the last one if the run ends before; write checkpoints."""
        spec, experiment = work.spec, resolve_spec(work.spec, self.settings, fetch=True)
        population = self.populations.of(experiment)
        checkpoints = Checkpoints(work.url, describe_experiment(spec))
        checkpoint = checkpoints.load(partial(make_state_template, experiment.algorithm, population))
        if checkpoint is not None and checkpoint.round >= work.until:
            # It was killed between the checkpoint and the line of the record.
            return list(checkpoint.records)[work.until - 1]
        pool = SerialPool(experiment.algorithm, population)
        record = list(checkpoint.records)[-1] if checkpoint is not None else {}
        try:
            for result in simulate(
                experiment.algorithm,
                population,
                pool,
                rounds=work.until,
                evaluate_every=work.until,
                personal=experiment.personal,
                stop=experiment.stop,
                devices=experiment.devices,
                resume=checkpoint,
            ):
                record = result.record()
                checkpoints.note_round(result)
                every = spec.checkpoint.every
                is_last = result.round == work.until or result.end is not None
                if is_last or (every and result.round % every == 0):
                    checkpoints.save(result, pool, spec.rounds)
        finally:
            pool.close()
        return record


NO_SCORE = "the run has no finite score on the validation set"


def read_score(metrics: Mapping[str, Any], digest: str, metric: str | None) -> TrialScore:
    """Return the score of a trial after a round.

    Args:
        metrics: of the round.
        digest: of the server state.
        metric: see `TrialWork`.

    Raises:
        SpecError: the run has no such metric, nor has any other trial.
    """
    if metric is not None:
        if metric not in metrics:
            hint = f"a trial measures {', '.join(name for name in metrics if '_validation_' in name)}"
            raise SpecError([FieldError("metric", metric, "is not measured", hint)])
        value = metrics[metric]
        finite = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
        return TrialScore(metric, finite, digest, "" if finite is not None else NO_SCORE)
    candidates = list(list_candidates(metrics))
    # Trials are compared by the same model; a method with more models would have more chances.
    best = choose_best([each for each in candidates if each.model == "global"] or candidates)
    if best is None or not math.isfinite(best.validation):
        return TrialScore("", None, digest, NO_SCORE)
    return TrialScore(f"{best.model}_validation_{best.metric}", best.validation, digest)


@dataclass(frozen=True)
class LocalTrials:
    """Trials that train in processes of this machine, one client after another.

    Attributes:
        processes: how many; 1 for this process alone.
        settings: where the data is.
    """

    processes: int
    settings: Settings

    def check(self, spec: JobSpec) -> None:
        """Check a spec with the data of this machine; see `resolve_spec`."""
        resolve_spec(spec, self.settings, fetch=True)

    @contextmanager
    def open(self) -> Iterator[Train]:
        """Return a function that trains trials, several at a time."""
        if self.processes == 1:
            yield partial(_train_here, Trainer(self.settings))
            return
        try:
            with open_processes(self.processes, Trainer, (self.settings,)) as train:
                yield train
        except BrokenProcessPool:
            hint = "give fewer --processes; the same call continues the search"
            raise FedsimError("a process was killed, perhaps for want of memory", hint) from None

    def run_best(self, spec: JobSpec) -> FinalScore:
        """Run the best spec in this process."""
        run = run_in_process(spec, self.settings, RunListener())
        return FinalScore(run.final, run.records[-1].digest, run)


def _train_here(trainer: Trainer, work: TrialWork) -> Future[TrialScore]:
    future = Future[TrialScore]()
    future.set_result(trainer(work))
    return future
