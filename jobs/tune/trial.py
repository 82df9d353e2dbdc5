"""Train one trial until a round, from its last checkpoint, and score it on the validation set alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.engine.evaluation.model_selection import choose_best, list_candidates
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import one_thread
from fedsim.errors import FedsimError
from jobs.grid.one_run import Populations
from jobs.grid.process_pool import open_processes, settle
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.resolve import resolve_spec


class Work(NamedTuple):
    """A trial and the round to which it trains.

    Attributes:
        spec: of the trial, with all its rounds.
        url: the folder of its checkpoints.
        until: the round after which it is scored.
        metric: on the validation set; None for the metric that chooses models.
    """

    spec: JobSpec
    url: str
    until: int
    metric: str | None


class Score(NamedTuple):
    """The outcome of a trial after a round.

    Attributes:
        metric: the name of the score; "" if the trial failed.
        value: the score; None if the trial failed, or has no finite score.
        digest: of the server state.
        error: why the trial failed; "" if it did not.
    """

    metric: str
    value: float | None
    digest: str = ""
    error: str = ""


class Trainer:
    """Trains trials in this process, one client after another; trials with the same data share it.

    Args:
        settings: where the data is.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.populations = settings, Populations()

    def __call__(self, work: Work) -> Score:
        """Train a trial until a round, and score it; a failure of the run is a value, not an error."""
        try:
            with one_thread():
                record = self._train(work)
        except FedsimError as error:
            return Score("", None, error=str(error))
        except Exception as error:  # one broken trial must not end the search
            return Score("", None, error=f"{type(error).__name__}: {error}")
        return _read_score(record, work.metric)

    def _train(self, work: Work) -> Mapping[str, Any]:
        """Return the record of the round; write checkpoints as the spec says, and after the round."""
        spec, experiment = work.spec, resolve_spec(work.spec, self.settings, fetch=True)
        population = hide_tests(self.populations.of(experiment))
        checkpoints = Checkpoints(work.url, describe_experiment(spec))
        checkpoint = checkpoints.load(make_initial_state(experiment.algorithm, population))
        if checkpoint is not None and checkpoint.round >= work.until:
            # It was killed between the checkpoint and the line of the record.
            return list(checkpoint.records)[work.until - 1]
        pool, record = SerialPool(experiment.algorithm, population), dict[str, Any]()
        try:
            for result in simulate(
                experiment.algorithm,
                population,
                pool,
                rounds=work.until,
                evaluate_every=work.until,
                personal="never",
                resume=checkpoint,
            ):
                record = result.record()
                checkpoints.note_round(result)
                every = spec.checkpoint.every
                if result.round == work.until or (every and result.round % every == 0):
                    checkpoints.save(result, pool, spec.rounds)
        finally:
            pool.close()
        return record


def hide_tests(population: Population) -> Population:
    """Return the population without any test examples: nothing of a trial is scored on them."""
    dataset = population.dataset
    none = dataset.test.select_rows(slice(0))
    return replace(population, dataset=replace(dataset, test=none), tests=None, more_tests={})


def _read_score(record: Mapping[str, Any], metric: str | None) -> Score:
    metrics, digest = record["metrics"], record["digest"]
    if metric is not None:
        value = metrics.get(metric)
        is_finite = isinstance(value, int | float) and math.isfinite(value)
        error = "" if metric in metrics else f"the run has no metric {metric!r}; it has {', '.join(metrics)}"
        return Score(metric, float(value) if is_finite else None, digest, error)
    best = choose_best(list_candidates(metrics))
    if best is None or not math.isfinite(best.validation):
        return Score("", None, digest, "the run has no finite score on the validation set")
    return Score(f"{best.model}_validation_{best.metric}", best.validation, digest)


_HERE: dict[str, Trainer] = {}  # one entry, in worker processes only: an initialiser returns nothing


def _begin(settings: Settings) -> None:
    settle()
    _HERE["trainer"] = Trainer(settings)


def _work(work: Work) -> Score:
    return _HERE["trainer"](work)


@contextmanager
def open_trainers(processes: int, settings: Settings) -> Iterator[Callable[[Work], Future[Score]]]:
    """Return a function that trains a trial: in this process, or in one of several processes."""
    if processes == 1:
        yield partial(_train_here, Trainer(settings))
        return
    with open_processes(processes, _begin, (settings,)) as executor:
        yield lambda work: executor.submit(_work, work)


def _train_here(trainer: Trainer, work: Work) -> Future[Score]:
    future = Future[Score]()
    future.set_result(trainer(work))
    return future
