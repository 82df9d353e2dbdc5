"""The section `evaluation`: what it makes of an algorithm, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedsim.engine.evaluation.last_model_averaging import LastModelAveraging
from fedsim.engine.evaluation.model_averaging import ModelAveraging
from fedsim.engine.evaluation.update_dissimilarity import UpdateDissimilarity
from fedsim.errors import SpecError
from fedsim.techniques.last_models import MeanKind
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import make_algorithm, resolve_spec


def averaging(average: Any, **more: Any) -> JobSpec:
    return parse_spec({"algorithm": "fedavg", "evaluation": {"average": average}, **more})


@pytest.mark.parametrize("average", [{"ema": 0.9}, {"last": 5}])
def test_an_average_wraps_the_algorithm_and_all_else(average: dict[str, Any]) -> None:
    spec = averaging(average, curriculum={"data": {}, "clients": {}})
    made = make_algorithm(spec)
    assert isinstance(made, ModelAveraging)
    assert {"ema": made.ema, "last": made.last} == {"ema": None, "last": None, **average}
    assert made.base == make_algorithm(averaging(None, curriculum={"data": {}, "clients": {}}))


@pytest.mark.parametrize(
    ("average", "path", "words"),
    [
        ({}, "evaluation.average", "one of ema, last and clients"),
        ({"ema": 0.5, "last": 2}, "evaluation.average", "one of ema, last and clients"),
        ({"ema": 0.5, "clients": "count"}, "evaluation.average", "one of ema, last and clients"),
        ({"clients": "age"}, "evaluation.average.clients", "geometric"),
        ({"ema": 1.0}, "evaluation.average.ema", "below 1"),
        ({"last": 0}, "evaluation.average.last", "is too small"),
        ("ema", "evaluation.average", ""),
    ],
)
def test_a_wrong_average_is_named(average: Any, path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        averaging(average)
    assert [fault.path for fault in caught.value.errors] == [path]
    assert words in str(caught.value)


@pytest.mark.parametrize("weights", get_args(MeanKind))
def test_the_last_models_of_clients_are_averaged_by_each_kind_of_weights(weights: str) -> None:
    spec = averaging({"clients": weights}, curriculum={"data": {}})
    assert make_algorithm(spec) == LastModelAveraging(
        base=make_algorithm(averaging(None, curriculum={"data": {}})), weights=weights
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"privacy": {"kind": "central", "clip": 1.0, "noise_multiplier": 1.0}}, "has added no noise"),
        ({"secure_aggregation": {}}, "secure aggregation hides"),
        ({"devices": {"fleet": "phones", "policy": "fedasync"}}, "rounds in which the server waits"),
        ({"algorithm": {"name": "fedensemble", "mode": "permutation"}}, "clients train several"),
    ],
)
def test_last_models_that_the_server_does_not_see_have_no_average(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path)
    assert resolve_spec(averaging({"last": 5}, **fields), settings)
    with pytest.raises(SpecError, match=words) as caught:
        resolve_spec(averaging({"clients": "geometric"}, **fields), settings)
    assert [fault.path for fault in caught.value.errors] == ["evaluation.average.clients"]


def test_an_algorithm_without_a_global_model_has_no_average(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"fedper has no global model, beside which") as caught:
        resolve_spec(averaging({"last": 5}, algorithm="fedper"), Settings(home=tmp_path))
    assert [fault.path for fault in caught.value.errors] == ["evaluation.average"]


def test_a_run_can_stop_by_its_average(tmp_path: Path) -> None:
    stop = {"metric": "average_accuracy", "target": 0.5}
    assert resolve_spec(averaging({"last": 5}, stop=stop), Settings(home=tmp_path)).stop is not None
    with pytest.raises(SpecError, match="is no metric of this run"):
        resolve_spec(averaging(None, stop=stop), Settings(home=tmp_path))


def test_a_run_goes_on_only_with_the_same_average() -> None:
    plain, averaged = describe_experiment(averaging(None)), describe_experiment(averaging({"last": 5}))
    assert plain != averaged != describe_experiment(averaging({"last": 6}))
    assert plain == describe_experiment(parse_spec({"algorithm": "fedavg", "evaluation": {"every": 2}}))


def test_dissimilarity_is_around_all_but_the_average() -> None:
    spec = averaging({"last": 5})
    section = {"average": {"last": 5}, "dissimilarity": True}
    both = parse_spec({"algorithm": "fedavg", "evaluation": section})
    made = make_algorithm(both)
    assert isinstance(made, ModelAveraging)
    assert isinstance(made.base, UpdateDissimilarity)
    assert describe_experiment(both) == {**describe_experiment(spec), "dissimilarity": True}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"algorithm": "fedper"}, "no global model"),
        ({"data": {"partition": "sampled"}}, "draw from all training examples"),
        ({"data": {"dataset": {"name": "npz", "path": "mine.npz", "test_share": 0.0}}}, "npz has none"),
    ],
)
def test_membership_inference_needs_a_model_members_and_tests(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 3)
    spec = parse_spec({"algorithm": "fedavg", "evaluation": {"membership": True}, **fields})
    with pytest.raises(SpecError, match=words) as caught:
        resolve_spec(spec, Settings(home=tmp_path, data_roots=(tmp_path,)))
    assert [fault.path for fault in caught.value.errors] == ["evaluation.membership"]


def test_members_change_no_round_and_have_metrics(tmp_path: Path) -> None:
    stop = {"metric": "global_members_accuracy", "target": 0.9}
    spec = parse_spec({"algorithm": "fedavg", "evaluation": {"membership": True}, "stop": stop})
    assert describe_experiment(spec) == describe_experiment(parse_spec({"algorithm": "fedavg"}))
    population = resolve_spec(spec, Settings(home=tmp_path)).load_population()
    assert population.members is not None
    assert len(population.members) == len(population.dataset.test)


def test_an_experiment_in_this_process_has_the_evaluation_the_clock_and_the_end_of_its_spec(
    tmp_path: Path,
) -> None:
    spec = parse_spec(
        {
            "algorithm": "fedper",
            "rounds": 9,
            "data": {"dataset": "synthetic", "tests": "matched"},
            "local": {"steps": 1},
            "evaluation": {"every": 2, "personal": "always"},
            "devices": "phones",
            "stop": {"round": 3},
        }
    )
    experiment = resolve_spec(spec, Settings(tmp_path))
    rounds = list(experiment.simulate(experiment.load_population()))
    assert [result.round for result in rounds] == [1, 2, 3]
    assert ["personal_accuracy_mean" in result.metrics for result in rounds] == [False, True, True]
    assert all(result.clock is not None for result in rounds)
