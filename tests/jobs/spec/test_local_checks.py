"""The optimizer and the schedule of a spec: refused by name, and what a run makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.core import LocalTraining
from fedsim.core.optimizers import SGD, AdamW
from fedsim.core.schedules import ConstantSchedule, CosineSchedule, PlateauSchedule
from fedsim.curriculum import ClientCurriculum, PlateauDecay
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.spec.spec_text import apply_overrides

WRONG = [
    ({"optimizer": "lion"}, "local.optimizer.name", "lion", "one of: adagrad, adam, adamw, rmsprop, sgd"),
    ({"optimizer": "adamax"}, "local.optimizer.name", "adamax", "did you mean 'adam'?"),
    ({"optimizer": {"name": "adam", "beta": 0.9}}, "local.optimizer.beta", 0.9, "did you mean 'betas'?"),
    ({"optimizer": {"name": "adam", "betas": [0.9]}}, "local.optimizer.betas", [0.9], "[0.9, 0.999]"),
    ({"optimizer": {"name": "adam", "betas": [0.9, 1]}}, "local.optimizer.betas", [0.9, 1], "[0.9, 0.999]"),
    ({"optimizer": {"name": "adamw", "eps": 0}}, "local.optimizer.eps", 0, "1e-08"),
    ({"optimizer": "adam", "momentum": 0.9}, "local.momentum", 0.9, "the first of its betas"),
    ({"optimizer": "adagrad", "momentum": 0.9}, "local.momentum", 0.9, "use optimizer: sgd or rmsprop"),
    ({"optimizer": {"name": "sgd", "nesterov": True}}, "local.optimizer.nesterov", True, "local.momentum"),
    ({"clip_norm": 0}, "local.clip_norm", 0, "above 0"),
    ({"label_smoothing": 1}, "local.label_smoothing", 1, "below 1"),
    ({"schedule": "cosinus"}, "local.schedule.name", "cosinus", "did you mean 'cosine'?"),
    ({"schedule": {"name": "step", "evry": 3}}, "local.schedule.evry", 3, "did you mean 'every'?"),
    ({"schedule": {"name": "step", "over": "epochs"}}, "local.schedule.over", "epochs", "rounds"),
    ({"schedule": {"name": "cosine", "over": "steps"}}, "local.schedule.length", None, "the local steps"),
    ({"schedule": {"name": "cosine", "warmup": 5, "length": 5}}, "local.schedule.length", 5, "above warmup"),
    ({"schedule": {"name": "cosine", "warmup": 20}}, "local.schedule.warmup", 20, "more rounds"),
    ({"schedule": {"name": "plateau", "over": "steps"}}, "local.schedule.over", "steps", "leave it out"),
    ({"schedule": {"name": "plateau", "factor": 1}}, "local.schedule.factor", 1, "0.1"),
    ({"schedule": {"name": "cosine", "length": 8}}, "local.schedule.final", 0.0, "a number above 0"),
]


@pytest.mark.parametrize("algorithm", ["fedlc", "fedrod"])
def test_label_smoothing_needs_a_probability_for_every_class(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no probability") as caught:
        resolve(tmp_path, {"algorithm": algorithm, "local": {"label_smoothing": 0.1}})
    assert [fault.path for fault in caught.value.errors] == ["local.label_smoothing"]


def resolve(tmp_path: Path, data: dict[str, Any]) -> LocalTraining:
    spec = parse_spec({"algorithm": "fedavg", "rounds": 20, **data})
    return resolve_spec(spec, Settings(home=tmp_path)).settings.local


@pytest.mark.parametrize(
    ("local", "path", "value", "hint"), WRONG, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_wrong_choice_is_named_with_the_way_out(
    local: dict[str, Any], path: str, value: Any, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(tmp_path, {"local": local})
    (fault,) = caught.value.errors
    assert (fault.path, fault.value) == (path, value)
    assert hint in fault.hint


def test_parameters_are_set_by_path(tmp_path: Path) -> None:
    items = ["local.optimizer=adamw", "local.optimizer.eps=1e-6", "local.schedule.warmup=3"]
    found = resolve(tmp_path, apply_overrides({}, items))
    assert (found.optimizer, found.schedule) == (AdamW(eps=1e-6), ConstantSchedule(warmup=3))


def test_methods_that_compute_with_the_steps_of_sgd_refuse_other_optimizers(tmp_path: Path) -> None:
    assuming = {name for name, method in ALGORITHMS.items() if method.assumes_sgd}
    assert assuming == {"fedcl_code", "feddc", "fednova", "mimelite", "qfedavg", "scaffold"}
    with pytest.raises(SpecError) as caught:
        resolve(tmp_path, {"algorithm": "scaffold", "local": {"optimizer": "adam"}})
    (fault,) = caught.value.errors
    assert (fault.path, fault.value) == ("local.optimizer", "adam")
    assert "scaffold computes with the size of the steps of SGD" in fault.message
    resolve(tmp_path, {"algorithm": "scaffold", "local": {"optimizer": "sgd"}})


def test_graphs_replay_sgd_only(tmp_path: Path) -> None:
    resources = {"gpus_per_worker": 1, "graphs": True}
    with pytest.raises(SpecError) as caught:
        resolve(tmp_path, {"resources": resources, "local": {"optimizer": "rmsprop"}})
    assert [fault.path for fault in caught.value.errors] == ["resources.graphs"]


def test_a_spec_says_all_of_local_training(tmp_path: Path) -> None:
    found = resolve(
        tmp_path,
        {
            "local": {
                "optimizer": {"name": "adamw", "betas": [0.9, 0.99]},
                "lr": 0.001,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "label_smoothing": 0.1,
                "schedule": {"name": "cosine", "warmup": 5},
            }
        },
    )
    assert found == LocalTraining(
        optimizer=AdamW(betas=[0.9, 0.99]),  # type: ignore[arg-type]
        lr=0.001,
        weight_decay=0.01,
        clip_norm=1.0,
        label_smoothing=0.1,
        schedule=CosineSchedule(warmup=5),
    )
    nesterov = {"momentum": 0.9, "optimizer": {"name": "sgd", "nesterov": True}}
    assert resolve(tmp_path, {"local": nesterov}).optimizer == SGD(nesterov=True)


def test_a_plateau_schedule_wraps_the_algorithm(tmp_path: Path) -> None:
    schedule = {"name": "plateau", "patience": 3, "warmup": 2}
    data = {"algorithm": "fedavg", "local": {"schedule": schedule}, "curriculum": {"clients": {}}}
    found = resolve_spec(parse_spec(data), Settings(home=tmp_path))
    assert isinstance(found.algorithm, PlateauDecay)
    assert isinstance(found.algorithm.base, ClientCurriculum)
    assert found.algorithm.schedule == PlateauSchedule(patience=3, warmup=2)
    assert found.settings.local.schedule == ConstantSchedule(warmup=2)


def test_a_run_with_a_rate_that_falls_until_the_last_round_cannot_be_given_more() -> None:
    """With a length of its own it can; and runs from before these fields existed go on."""
    base = {"algorithm": "fedavg", "rounds": 20}

    def describe(schedule: Any) -> dict[str, Any]:
        return describe_experiment(parse_spec({**base, "local": {"schedule": schedule}}))

    assert describe("cosine")["rounds"] == 20
    assert "rounds" not in describe({"name": "cosine", "length": 20})
    assert "rounds" not in describe("step")
    assert "rounds" not in describe("plateau")
    plain = describe_experiment(parse_spec(base))["local"]
    assert not {"optimizer", "label_smoothing", "precision", "schedule"} & plain.keys()
    assert plain["clip_norm"] is None
