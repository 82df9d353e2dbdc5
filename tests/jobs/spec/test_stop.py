"""The section `stop`: the rule that it makes, and the faults that a check finds by name."""

from __future__ import annotations

from typing import Any

import pytest

from fedsim.engine.stopping import StopRule
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.spec import parse_spec
from jobs.spec.checks.name_checks import find_name_faults
from jobs.spec.checks.stop_checks import find_stop_faults
from jobs.spec.cloning import set_last_round

VALIDATION = {"evaluation": {"validation": 0.1}}
ALWAYS = {"evaluation": {"personal": "always"}}


def faults_of(metric: str, algorithm: str = "fedavg", **more: Any) -> list[str]:
    stop = {"metric": metric, "patience": 2}
    spec = parse_spec({"algorithm": algorithm, "stop": stop, **more})
    found = find_stop_faults(spec)
    assert all((fault.path, fault.value) == ("stop.metric", metric) for fault in found)
    return [f"{fault.message}; {fault.hint}" for fault in found]


def test_a_run_can_stop_by_the_metric_of_its_task() -> None:
    table = {"dataset": "diabetes", "partition": "iid"}
    assert faults_of("global_rmse", data=table) == []
    assert faults_of("personal_rmse_mean", data=table, **ALWAYS) == []
    assert faults_of("global_auroc", evaluation={"metrics": ["auroc"]}) == []
    assert (
        "take one of global_auroc, global_loss" in faults_of("energy", evaluation={"metrics": ["auroc"]})[0]
    )


def test_a_target_in_percent_is_never_reached() -> None:
    stop = {"metric": "global_accuracy", "target": 90}
    [fault] = find_stop_faults(parse_spec({"algorithm": "fedavg", "stop": stop}))
    assert (fault.path, fault.hint) == ("stop.target", "write it as a share, such as 0.9")
    loss = {"metric": "global_loss", "target": 2}
    assert not find_stop_faults(parse_spec({"algorithm": "fedavg", "stop": loss}))


def test_a_spec_without_criteria_has_no_rule() -> None:
    assert parse_spec({"algorithm": "fedavg", "stop": {}}).stop.rule is None
    stop = {"metric": "global_loss", "target": 0.5, "max_bytes": 1e9}
    expected = StopRule(metric="global_loss", target=0.5, max_bytes=1e9)
    assert parse_spec({"algorithm": "fedavg", "stop": stop}).stop.rule == expected


@pytest.mark.parametrize(
    ("stop", "path"),
    [
        ({"target": 0.5}, "stop.target"),
        ({"patience": 3}, "stop.patience"),
        ({"metric": "global_accuracy"}, "stop.metric"),
        ({"metric": "global_accuracy", "max_seconds": 9}, "stop.metric"),
        ({"max_seconds": 0}, "stop.max_seconds"),
        ({"max_bytes": -1}, "stop.max_bytes"),
        ({"metric": "global_accuracy", "patience": 0}, "stop.patience"),
        ({"minutes": 3}, "stop.minutes"),
    ],
)
def test_a_wrong_section_is_refused_by_name(stop: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"algorithm": "fedavg", "stop": stop})
    assert [fault.path for fault in caught.value.errors] == [path]


def test_simulated_seconds_need_a_clock() -> None:
    stop = {"max_simulated_seconds": 60}
    (fault,) = find_stop_faults(parse_spec({"algorithm": "fedavg", "stop": stop}))
    assert (fault.path, fault.value) == ("stop.max_simulated_seconds", 60)
    assert not find_stop_faults(parse_spec({"algorithm": "fedavg", "stop": stop, "devices": "phones"}))


def test_metrics_that_a_run_measures_are_welcome() -> None:
    assert not faults_of("global_accuracy")
    assert not faults_of("train_loss", "fedper")
    assert not faults_of("global_validation_accuracy", **VALIDATION)
    assert not faults_of("global_1_accuracy", "feddf", model=["mlp", "lenet5"])
    assert not faults_of("personal_accuracy_mean", "fedper", **ALWAYS)
    assert not faults_of("open_share", curriculum={"data": {}})
    assert not faults_of("teacher_accuracy", "kdia")


@pytest.mark.parametrize(
    ("metric", "more", "words"),
    [
        ("gobal_accuracy", {}, "did you mean 'global_accuracy'?"),
        ("gobal_accuracy", {"algorithm": "kdia"}, "did you mean 'global_accuracy'?"),
        ("teacher_accuracy", {}, "is no metric of this run"),
        ("energy", {}, "take one of global_perplexity, global_mean_iou, global_rmse, global_accuracy"),
        ("global_accuracy", {"algorithm": "fedper"}, "fedper has no global model"),
        ("global_validation_loss", {}, "set evaluation.validation"),
        ("personal_accuracy", {}, "evaluation.personal: auto; set evaluation.personal: always"),
        ("personal_accuracy", {"evaluation": {"personal": "last"}}, "set evaluation.personal: always"),
        ("personal_accuracy_std", ALWAYS, "is no measure of quality"),
    ],
)
def test_metrics_that_a_run_does_not_measure_are_refused(metric: str, more: Any, words: str) -> None:
    (found,) = faults_of(metric, **more)
    assert words in found


def test_a_round_after_the_last_one_is_refused() -> None:
    def find(round: int) -> list[str]:
        spec = parse_spec({"algorithm": "fedavg", "rounds": 5, "stop": {"round": round}})
        return [f"{fault.path} {fault.message}" for fault in find_stop_faults(spec)]

    assert find(5) == []
    assert find(6) == ["stop.round is after the last round, 5"]


def test_without_test_examples_only_scores_on_the_validation_set_can_stop_a_run() -> None:
    untested = {"evaluation": {"validation": 0.1, "test": False}}
    assert not faults_of("global_validation_accuracy", **untested)
    (found,) = faults_of("global_accuracy", **untested)
    assert "did you mean 'global_validation_accuracy'?" in found
    views = {"evaluation": {**untested["evaluation"], "personal": "always"}}
    (found,) = faults_of("personal_accuracy_mean", **views)
    assert "evaluation.test leaves them out" in found
    views["data"] = {"tests": ["matched", "validation"]}
    assert not faults_of("personal_validation_accuracy_mean", **views)
    (found,) = faults_of("personal_accuracy_mean", **views)
    assert "personal_validation_accuracy_mean" in found


@pytest.mark.parametrize(
    ("evaluation", "algorithm", "paths"),
    [
        ({"validation": 0.1}, "fedavg", []),
        ({}, "fedavg", ["evaluation.test"]),
        ({"validation": 0.1}, "lg_fedavg", ["evaluation.test"]),
        ({"validation": 0.1, "personal": "always"}, "fedavg", ["evaluation.personal"]),
    ],
)
def test_a_run_without_test_examples_needs_other_scores(
    evaluation: dict[str, Any], algorithm: str, paths: list[str]
) -> None:
    spec = {"algorithm": algorithm, "evaluation": {**evaluation, "test": False}}
    assert [fault.path for fault in find_name_faults(parse_spec(spec))] == paths
    if evaluation:
        viewed = parse_spec({**spec, "data": {"tests": ["matched", "validation"]}})
        assert find_name_faults(viewed) == []


def test_a_job_goes_on_until_another_round() -> None:
    stopped = {"algorithm": "fedavg", "rounds": 27, "stop": {"round": 3}}
    assert set_last_round(stopped, 9) == {**stopped, "stop": {"round": 9}}
    assert set_last_round(stopped, 27) == {**stopped, "stop": {"round": None}}
    assert set_last_round(stopped, 30) == {**stopped, "rounds": 30, "stop": {"round": None}}
    assert set_last_round({"rounds": 27}, 9) == {"rounds": 9}


def test_a_run_goes_on_with_another_rule_but_not_with_another_choice_of_the_result() -> None:
    def described(**stop: Any) -> dict[str, Any]:
        return describe_experiment(parse_spec({"algorithm": "fedavg", "stop": stop}))

    assert described() == described(max_seconds=3) == described(metric="global_loss", target=0.1)
    best = described(metric="global_loss", patience=3)
    assert best == described(metric="global_loss", patience=9, max_bytes=1) != described()
    assert best != described(metric="global_accuracy", patience=3)
