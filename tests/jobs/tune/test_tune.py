"""A whole search: what it finds, what it costs, what it never sees, and how it goes on."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Annotated, Any

import pytest
import yaml

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.core import Context, ReducedUpdates
from fedsim.errors import FedsimError, SettingsError, SpecError
from jobs.run.listener import RunListener
from jobs.run.without_ray.in_process import run_in_process
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.tune import search as search_module
from jobs.tune import trial as trial_module
from jobs.tune.record import SEARCH, TRIALS, open_record
from jobs.tune.result import TuneResult
from jobs.tune.search import tune
from jobs.tune.trial import Trainer, TrialWork, make_trial_spec

BASE: dict[str, Any] = {
    "rounds": 4,
    "clients": {"total": 8, "fraction": 0.5},
    "data": {"dataset": "digits", "limit": 400},
    "local": {"steps": 2, "batch_size": 20, "lr": 0.1},
    "algorithm": "fedavg",
    "evaluation": {"validation": 0.2},
    "checkpoint": {"every": 1},
}
RATES = [0.001, 0.01, 0.1]


def run(out: Path, settings: Settings, **options: Any) -> TuneResult:
    options = {"space": {"local.lr": RATES}, "method": "grid", "first_rounds": 1, "reduction": 2, **options}
    return tune(options.pop("spec", BASE), out=out, settings=settings, **options)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def test_a_grid_ends_with_the_best_rate_and_one_look_at_the_tests(tmp_path: Path, settings: Settings) -> None:
    result = run(tmp_path, settings)
    assert result.best.values == {"local.lr": 0.1}
    assert result.metric == "global_validation_accuracy"
    assert result.rounds < 3 * 4
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["local"]["lr"] == 0.1
    assert result.run is not None
    # The trial went from rung to rung by its checkpoints: the whole run has the same state and score.
    assert result.run.records[-1].digest == result.best.digest
    assert result.run.final["global_validation_accuracy"] == result.best.score
    assert "global_accuracy" in result.test
    assert "<th>local.lr</th>" in result._repr_html_()


def test_no_trial_has_a_score_on_the_test_set(tmp_path: Path, settings: Settings) -> None:
    spec = parse_spec(
        {
            **BASE,
            "data": {**BASE["data"], "tests": "merged"},
            "evaluation": {"validation": 0.2, "personal": "always"},
        }
    )
    record = Trainer(settings)._train(TrialWork(0, {}, make_trial_spec(spec), str(tmp_path), 2, None))
    assert sorted(record["metrics"]) == [
        "global_validation_accuracy",
        "global_validation_loss",
        "train_loss",
    ]
    whole = run_in_process(spec, settings, RunListener()).records[1]
    assert "personal_accuracy" in whole.metrics
    assert whole.digest == record["digest"]
    run(tmp_path / "out", settings, test=False)
    assert "global_accuracy" not in (tmp_path / "out" / TRIALS).read_text()


def test_personal_models_are_tuned_on_the_validation_set(tmp_path: Path, settings: Settings) -> None:
    """LG-FedAvg has no global model; the search by hand is a run for each rate without tests."""
    spec = {**BASE, "algorithm": "lg_fedavg", "data": {**BASE["data"], "tests": "matched"}}
    metric = "personal_validation_accuracy_mean"
    with pytest.raises(SpecError, match=f"metric.*no global model.*{metric}"):
        run(tmp_path / "global", settings, spec=spec)
    result = run(tmp_path / "out", settings, spec=spec, metric=metric, first_rounds=4)
    views = {
        "data": {**spec["data"], "tests": ["matched", "validation"]},
        "evaluation": {"validation": 0.2, "personal": "last", "test": False},
    }
    for trial in result.trials:
        alone = parse_spec({**spec, **views, "local": {**BASE["local"], "lr": trial.values["local.lr"]}})
        record = run_in_process(alone, settings, RunListener()).records[-1]
        assert (record.digest, record.metrics[metric]) == (trial.digest, trial.score)
        assert not any(name.startswith("personal_accuracy") for name in record.metrics)
    assert "personal_accuracy_mean" in result.test


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({"devices": {"fleet": "phones", "dropout": 0.6}}, 4),
        ({"devices": {"fleet": "phones", "policy": {"name": "fedbuff", "buffer": 3}}}, 4),
        ({"rounds": 8, "privacy": {"noise_multiplier": 1.0, "epsilon": 4.7, "delta": 0.01}}, 5),
    ],
    ids=["devices fail", "asynchronous", "a privacy budget"],
)
def test_a_trial_is_the_run_from_rung_to_rung(
    tmp_path: Path, settings: Settings, changes: dict[str, Any], rounds: int
) -> None:
    if "privacy" in changes:
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
    spec = parse_spec({**BASE, **changes, "checkpoint": {"every": 0}})
    whole = run_in_process(spec, settings, RunListener()).records
    assert len(whole) == rounds
    trainer = Trainer(settings)
    for until in (1, 4, 6, 8)[: spec.rounds // 2]:
        record = trainer._train(TrialWork(0, {}, make_trial_spec(spec), str(tmp_path / "trial"), until, None))
        assert record["digest"] == whole[min(until, rounds) - 1].digest
        assert "global_validation_accuracy" in record["metrics"]


def test_a_killed_search_goes_on_where_it_was(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", settings)
    trained = list[int]()
    simulate = trial_module.simulate

    def count_rounds(*args: Any, **options: Any) -> Any:
        for result in simulate(*args, **options):
            trained.append(result.round)
            if len(trained) == 4:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(trial_module, "simulate", count_rounds)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", settings)
    result = run(tmp_path / "cut", settings)
    assert [trial.scores for trial in result.trials] == [trial.scores for trial in whole.trials]
    assert result.best.digest == whole.best.digest
    assert len(trained) == result.rounds + 1  # the round that was lost
    assert run(tmp_path / "cut", settings).run is None  # nothing trains, and nothing is tested again
    assert len(trained) == result.rounds + 1


def test_a_schedule_over_all_rounds_is_not_cut_short(tmp_path: Path, settings: Settings) -> None:
    spec = {**BASE, "local": {**BASE["local"], "schedule": "cosine"}}
    result = run(tmp_path, settings, spec=spec)
    assert result.run is not None
    assert result.run.records[-1].digest == result.best.digest


def test_a_failed_trial_loses(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Trainer._train

    def fail_at_a_rate(self: Trainer, work: TrialWork) -> Any:
        if work.spec.local.lr == 0.1:
            raise RuntimeError("no such rate")
        return train(self, work)

    monkeypatch.setattr(Trainer, "_train", fail_at_a_rate)
    result = run(tmp_path, settings, test=False)
    assert result.best.values != {"local.lr": 0.1}
    assert [trial.error for trial in result.ranked] == ["", "", "RuntimeError: no such rate"]
    assert result.list_rows()[1][-1][-1] == "failed"


def test_fields_are_set_by_items_or_by_a_mapping(tmp_path: Path, settings: Settings) -> None:
    found = [
        run(tmp_path / str(place), settings, test=False, space={"local.lr": [0.1]}, set=fields).best.digest
        for place, fields in enumerate((["seed=3"], {"seed": 3}, "seed=4"))
    ]
    assert found[0] == found[1] != found[2]


def test_smaller_losses_are_better(tmp_path: Path, settings: Settings) -> None:
    result = run(tmp_path, settings, metric="global_validation_loss", test=False)
    assert result.best.values == {"local.lr": 0.1}
    assert result.best.score == min(trial.scores.get(4) or math.inf for trial in result.trials)


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"spec": {**BASE, "evaluation": {}}}, "evaluation.validation", "validation set"),
        ({"spec": {**BASE, "algorithm": "lg_fedavg"}}, "metric", "no global model"),
        ({"metric": "global_accuracy"}, "metric", "validation"),
        ({"space": {"local.lr": [0.1, -1]}}, "local.lr", "too small"),
        ({"space": {"local.rl": [0.1]}}, "local.rl", "is not a field"),
        ({"space": {}}, "space", "names no field"),
        ({"space": {"rounds": [2, 8]}}, "space.rounds", "train the rounds of the spec"),
        ({"space": {"evaluation.average": [None]}}, "space.evaluation.average", "in the same way"),
        (
            {"space": {"algorithm.mu": [0], "algorithm": ["fedprox"]}},
            "space.algorithm",
            "replace algorithm.mu",
        ),
        ({"trials": 0}, "trials", "out of range"),
        ({"first_rounds": 5}, "first_rounds", "out of range"),
        ({"reduction": 1}, "reduction", "out of range"),
        ({"processes": 0}, "processes", "out of range"),
        ({"method": "hyperband"}, "method", "bayes, random, grid"),
    ],
)
def test_mistakes_are_found_before_anything_trains(
    tmp_path: Path, settings: Settings, options: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        run(tmp_path / "out", settings, **options)
    [fault] = [each for each in error.value.errors if each.path == path]
    assert message in f"{fault.message} {fault.hint}"
    assert not (tmp_path / "out").exists()


def test_trials_are_compared_by_the_global_model(tmp_path: Path, settings: Settings) -> None:
    """A method with more models, such as an average, would have more chances."""
    evaluation = {**BASE["evaluation"], "average": {"last": 2}, "membership": True}
    found = run(tmp_path, settings, spec={**BASE, "evaluation": evaluation})
    assert found.metric == "global_validation_accuracy"
    assert all(trial.score is not None for trial in found.trials)
    assert "global_members_accuracy" in found.test


def test_a_metric_that_no_trial_has_ends_the_search_at_once(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(SpecError, match="global_validation_accuracy") as error:
        run(tmp_path, settings, metric="global_validation_acuracy")
    assert error.value.errors[0].path == "metric"
    assert "digest" not in (tmp_path / TRIALS).read_text()


def test_a_folder_has_one_search(tmp_path: Path, settings: Settings) -> None:
    run(tmp_path, settings, test=False)
    with pytest.raises(SettingsError, match=r"local.lr was .*another folder"):
        run(tmp_path, settings, space={"local.lr": [0.1, 0.2]})


def test_the_plan_of_a_search_is_written_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt), open_record(tmp_path, {"seed": 1}):
            pass
    assert not (tmp_path / SEARCH).exists()
    with open_record(tmp_path, {"seed": 1}):
        pass
    monkeypatch.setattr(Path, "replace", fail)
    with open_record(tmp_path, {"seed": 1}):
        pass
    assert json.loads((tmp_path / SEARCH).read_text("utf-8")) == {"seed": 1}


def test_two_searches_do_not_share_a_folder(tmp_path: Path, settings: Settings) -> None:
    with (
        open_record(tmp_path, {}),
        pytest.raises(SettingsError, match=r"another search works in .*wait for it"),
    ):
        run(tmp_path, settings)


class KilledTrainer:
    """A trainer whose process is killed."""

    def __init__(self, settings: Settings) -> None:
        pass

    def __call__(self, work: TrialWork) -> None:
        os._exit(1)


def test_a_killed_process_is_explained(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "Trainer", KilledTrainer)
    with pytest.raises(FedsimError, match=r"want of memory .*--processes; the same call continues"):
        run(tmp_path, settings, processes=2)


def test_without_optuna_the_error_names_the_extra(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"\.\[tune\]"):
        run(tmp_path, settings, method="bayes", space={"local.lr": "log:0.01..1"})


@pytest.mark.slow
def test_two_processes_find_the_same_scores(tmp_path: Path, settings: Settings) -> None:
    here = run(tmp_path / "one", settings, first_rounds=4, test=False)
    there = run(tmp_path / "two", settings, first_rounds=4, test=False, processes=2)
    assert [trial.digest for trial in here.trials] == [trial.digest for trial in there.trials]


PLANTED = 0.03


@dataclass(frozen=True, kw_only=True)
class Planted(FedAvg):
    """FedAvg whose server steps only so far as its rate is near the planted one."""

    rate: Annotated[float, Range(above=0)] = 0.1

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        after = super().aggregate(ctx, state, reduced)
        step = math.exp(-(math.log(self.rate / PLANTED) ** 2))
        moved = tree.map(lambda old, new: old + step * (new - old), state.params, after.params)
        return type(after)(params=moved)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_forty_trials_find_a_planted_rate(
    seed: int, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setitem(ALGORITHMS.own, "planted", Planted)  # type: ignore[arg-type]
    found = run(
        tmp_path,
        settings,
        spec={**BASE, "rounds": 9, "algorithm": "planted"},
        space={"algorithm.rate": "log:0.0001..10"},
        method="bayes",
        trials=40,
        reduction=3,
        metric="global_validation_loss",
        seed=seed,
        test=False,
    )
    assert len(found.trials) == 40
    assert PLANTED / 1.5 < found.best.values["algorithm.rate"] < PLANTED * 1.5


@pytest.mark.slow
def test_halving_costs_less_than_the_grid_for_as_good_a_rate(tmp_path: Path, settings: Settings) -> None:
    spec = {**BASE, "rounds": 18, "data": {"dataset": "digits"}}
    rates = [float(f"{10 ** (-4 + 5 * number / 26):.4g}") for number in range(27)]
    options: dict[str, Any] = {
        "spec": spec,
        "space": {"local.lr": rates},
        "trials": 27,
        "reduction": 3,
        "test": False,
    }
    whole = run(tmp_path / "whole", settings, **{**options, "first_rounds": 18})
    halved = run(tmp_path / "halved", settings, **{**options, "first_rounds": 2})
    assert whole.rounds == 27 * 18
    assert halved.rounds < 0.4 * whole.rounds
    scores = []
    for seed in range(5):
        again = parse_spec({**whole.spec.model_dump(mode="json", exclude_unset=True), "seed": seed})
        scores.append(run_in_process(again, settings, RunListener()).final[whole.metric])
    assert whole.best.score is not None
    assert halved.best.score is not None
    assert whole.best.score - halved.best.score <= stdev(scores)


def test_the_record_is_plain_lines(tmp_path: Path, settings: Settings) -> None:
    result = run(tmp_path, settings, test=False)
    lines = [json.loads(line) for line in (tmp_path / TRIALS).read_text().splitlines()]
    assert lines[0]["values"]["local.lr"] in RATES
    assert {line["values"]["local.lr"] for line in lines if "values" in line} == set(RATES)
    assert sum("value" in line for line in lines) == sum(len(trial.scores) for trial in result.trials)
    assert search_module.BEST == "best.yaml"


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    page = (Path(__file__).parents[3] / "docs" / "tune.md").read_text("utf-8")
    [block] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(block, names)
    assert names["found"].rounds < 6 * 9
