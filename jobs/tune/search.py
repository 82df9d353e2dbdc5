"""`tune`: search the values of a spec's fields that do best on the validation set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.errors import FieldError, SpecError
from fedsim.learning_tasks.metrics import is_lower_better
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.grid import make_set_items
from jobs.spec.sweep import GROUP
from jobs.tune.halving import Step, choose_step
from jobs.tune.plan import Search, SearchOptions, check_search, plan_search
from jobs.tune.record import BEST, SearchRecord, Trial, open_record
from jobs.tune.result import TuneResult
from jobs.tune.sampler import Method, PastTrial, propose_values
from jobs.tune.service_trials import Service, ServiceTrials
from jobs.tune.trial import (
    LocalTrials,
    Trials,
    TrialScore,
    TrialWork,
    make_final_spec,
    make_trial_spec,
)


class TuneProgress(NamedTuple):
    """How far a search is.

    Attributes:
        trial: that has just been scored.
        begun: trials that have begun.
        trials: trials in all.
    """

    trial: Trial
    begun: int
    trials: int


def tune(
    spec: str | Path | Mapping[str, Any] | JobSpec,
    space: Mapping[str, Any],
    *,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    trials: int = 20,
    method: Method = "bayes",
    first_rounds: int | None = None,
    reduction: int = 3,
    metric: str | None = None,
    seed: int = 0,
    out: str | Path = "tuned",
    processes: int = 1,
    on: Service | None = None,
    test: bool = True,
    settings: Settings | None = None,
    on_score: Callable[[TuneProgress], None] = lambda _: None,
) -> TuneResult:
    """Search the values of a spec's fields that do best on the validation set.

    Trials never see the test set. Most of them end early, by asynchronous successive halving: see
    `jobs.tune.halving`. The same call again continues an interrupted search.

    Args:
        spec: a preset, a file, a mapping or a `JobSpec`, with `evaluation.validation`.
        space: the values to try by path, such as `{"local.lr": "log:0.001..1", "local.epochs": [1, 5]}`;
            see `jobs.tune.space`.
        set: fields of the spec to change: `PATH=VALUE` items, or `{"local.lr": 0.05}`.
        trials: how many sets of values to try; a grid has at most this many.
        method: "bayes" (Optuna's TPE), "random" or "grid".
        first_rounds: rounds before trials are compared first, by default `rounds / reduction**2`; all
            rounds of the spec turn early stopping off.
        reduction: one in this many trials goes on, and trains for this many times the rounds.
        metric: such as `global_validation_loss`, or `personal_validation_accuracy_mean` for the clients' own
            models. Default: the first metric of the data for the global model on the validation set.
        seed: of the search.
        out: folder of the search.
        processes: trials at the same time. With 1 they run in this process, and the same call gives the same
            result. More need a script with `if __name__ == "__main__":`.
        on: a `fedsim.FedSimClient`: each trial is a job of its service, `processes` of them at the same time.
        test: whether the best spec runs once more, scored on the test set.
        settings: where the data is, without a service; by default those of the environment.
        on_score: called after each score.

    Returns:
        The trials, and the spec with the best values.

    Raises:
        SpecError: the spec, a space or an option is wrong, or the spec has no validation set.
        Unreachable: the service has not answered for a minute.
        SettingsError: Optuna is not installed, the folder has another search, or another process works in it.
        FedsimError: every trial failed; or the run with the test set failed.
    """
    options = SearchOptions(
        trials=trials,
        method=method,
        first_rounds=first_rounds,
        reduction=reduction,
        metric=metric,
        seed=seed,
        processes=processes,
    )
    search = plan_search(spec, space, make_set_items(set), options)
    place: Trials = LocalTrials(processes, settings or Settings.from_env())
    label = ""
    if on is not None:
        place = ServiceTrials(on, search, processes)
        label = f"{GROUP}={place.name}"
    check_search(search, place.check)
    with open_record(Path(out), search.to_document()) as record:
        _run_trials(search, record, place, on_score)
        result = TuneResult(search, record.trials, record.metric, label=label)
        if result.best.score is None:
            hint = "run the spec once, such as by `fedsim run`, to see the whole error"
            raise SpecError([FieldError("space", None, f"no trial has a score: {result.best.error}", hint)])
        (record.folder / BEST).write_text(result.to_yaml(), "utf-8")
        number = result.best.number
        if test and number not in record.test:
            final = place.run_best(make_final_spec(result.spec, record.metric))
            line = {"trial": number, "test": final.metrics, "digest": final.digest}
            record.add({**line, "job": final.job} if final.job else line)
            result.run = final.run
        result.test, result.job = record.test.get(number, {}), record.test_job
        return result


def _run_trials(
    search: Search, record: SearchRecord, place: Trials, on_score: Callable[[TuneProgress], None]
) -> None:
    """Train trials until nothing is left to train."""
    running, options = dict[Future[TrialScore], Step](), search.options
    with place.open() as train:
        while True:
            while (
                len(running) < options.processes
                and (step := _choose_step(search, record, running)) is not None
            ):
                if step.trial == len(record.trials):
                    record.add({"trial": step.trial, "values": _propose(search, record)})
                values = record.trials[step.trial].values
                spec = make_trial_spec(search.make_spec(values), options.metric)
                url = record.checkpoint_url(step.trial)
                until = search.rungs[step.rung]
                running[train(TrialWork(step.trial, values, spec, url, until, options.metric))] = step
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                _add_score(record, step.trial, search.rungs[step.rung], future.result())
                on_score(TuneProgress(record.trials[step.trial], len(record.trials), options.trials))


def _add_score(record: SearchRecord, trial: int, round: int, score: TrialScore) -> None:
    line = {"trial": trial, "round": round, "metric": score.metric, "value": score.value}
    line |= {"digest": score.digest, **({"error": score.error} if score.error else {})}
    line |= {"job": score.job} if score.job else {}
    record.add(line)


def _choose_step(search: Search, record: SearchRecord, running: Mapping[Any, Step]) -> Step | None:
    sign = -1.0 if is_lower_better(record.metric) else 1.0
    places = {round: place for place, round in enumerate(search.rungs)}
    scores = [
        {
            places[round]: float("-inf") if value is None else sign * value
            for round, value in trial.scores.items()
        }
        for trial in record.trials
    ]
    busy = {step.trial for step in running.values()}
    options = search.options
    return choose_step(scores, busy, len(search.rungs) - 1, options.trials, options.reduction)


def _propose(search: Search, record: SearchRecord) -> dict[str, Any]:
    past = [
        PastTrial(trial.values, trial.scores, trial.score is not None and trial.rounds == search.rungs[-1])
        for trial in record.trials
    ]
    lower = is_lower_better(record.metric)
    options = search.options
    return propose_values(search.spaces, past, options.method, seed=options.seed, lower_is_better=lower)
