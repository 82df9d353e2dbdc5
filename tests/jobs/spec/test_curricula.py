"""The `curriculum` section of a spec: what it builds, what it refuses, and the expert that it has trained."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.core.capabilities import BatchPacing, CohortSelection
from fedsim.curriculum import ClientCurriculum, DataCurriculum, LayerCurriculum
from fedsim.engine.experiment import Experiment
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.checks import name_checks
from jobs.spec.checks.name_checks import find_name_faults
from jobs.spec.resolve import resolve_spec

BASE: dict[str, Any] = {"algorithm": "fedprox", "clients": {"total": 10}, "model": "logistic"}


def experiment(home: Path, curriculum: dict[str, Any], **more: Any) -> Experiment:
    return resolve_spec(parse_spec({**BASE, **more, "curriculum": curriculum}), Settings(home=home))


def test_no_curriculum_leaves_the_method_as_it_is(tmp_path: Path) -> None:
    for nothing in ({}, {"data": None, "clients": None}):
        found = experiment(tmp_path, nothing)
        assert type(found.algorithm) is ALGORITHMS["fedprox"]
        assert found.expert_epochs is None


def test_curricula_go_around_the_method_clients_outermost(tmp_path: Path) -> None:
    data, clients = {"score": "both_prediction", "a": 0.5, "budget": "global"}, {"scores": "kept", "b": 0.1}
    found = experiment(tmp_path, {"data": data, "clients": clients}).algorithm
    assert isinstance(found, ClientCurriculum)
    assert (found.scores, found.a, found.b, found.half_life) == ("kept", 0.8, 0.1, 10.0)
    inside = found.base
    assert isinstance(inside, DataCurriculum)
    assert (inside.score, inside.a, inside.b, inside.budget) == ("both_prediction", 0.5, 0.2, "global")
    assert inside.base == ALGORITHMS["fedprox"]()
    assert found.stateful


def test_methods_that_choose_for_themselves_are_refused_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(FedAvg, BatchPacing, CohortSelection):
        def select_cohort(self, *arguments: Any) -> list[int]:
            return [0]

        def pace_batches(self, *arguments: Any) -> None:
            return None

    monkeypatch.setattr(name_checks, "ALGORITHMS", MappingProxyType({"choosy": Choosy}))
    spec = parse_spec({"algorithm": "choosy", "curriculum": {"data": {}, "clients": {}}})
    faults = name_checks.find_curriculum_faults(spec)
    assert [(fault.path, fault.message) for fault in faults] == [
        ("curriculum.data", "choosy chooses the examples of its steps itself"),
        ("curriculum.clients", "choosy chooses its clients itself"),
    ]
    assert faults[0].hint == "leave 'data' out, or choose another algorithm"


def test_an_expert_is_trained_once_and_speaks_of_every_training_example(tmp_path: Path) -> None:
    expert = {"data": {"score": "expert_loss", "expert_epochs": 2}}
    population = experiment(tmp_path, expert).load_population()
    assert population.difficulty is not None
    assert population.difficulty.shape == (len(population.dataset.train),)
    assert (population.difficulty > 0).mean() > 0.9
    said = list(experiment(tmp_path, expert).prepare_population())
    assert "reading the expert's losses" in said
    assert not any("training" in text for text in said)
    partition = {"kind": "difficulty", "expert_epochs": 2, "base": {"kind": "iid"}}
    shared = experiment(tmp_path, expert, data={"partition": partition})
    assert sum("expert" in text for text in shared.prepare_population()) == 1
    both = shared.load_population().difficulty
    assert both is not None
    assert np.array_equal(both, population.difficulty)


def test_both_curricula_share_one_expert(tmp_path: Path) -> None:
    by_expert = {"scores": "expert", "expert_epochs": 2}
    assert experiment(tmp_path, {"clients": by_expert}).expert_epochs == 2
    data = {"score": "expert_loss", "expert_epochs": 2}
    assert experiment(tmp_path, {"data": data, "clients": by_expert}).expert_epochs == 2
    with pytest.raises(SpecError, match=r"differs from curriculum.data.expert_epochs, 2") as caught:
        experiment(tmp_path, {"data": data, "clients": {"scores": "expert"}})
    assert [fault.path for fault in caught.value.errors] == ["curriculum.clients.expert_epochs"]
    unused = {"scores": "all", "expert_epochs": 7}
    assert experiment(tmp_path, {"data": data, "clients": unused}).expert_epochs == 2


@pytest.mark.parametrize(
    "curriculum",
    [
        {},
        {"data": {}},
        {"data": {"score": "expert_loss", "order": "random"}},
        {"clients": {"scores": "expert", "order": "random"}},
    ],
)
def test_nobody_waits_for_an_expert_that_is_not_asked(curriculum: dict[str, Any], tmp_path: Path) -> None:
    assert experiment(tmp_path, curriculum).load_population().difficulty is None


def test_a_pace_over_rankings_needs_all_mini_batches() -> None:
    def described(**clients: Any) -> dict[str, Any]:
        spec = parse_spec({"algorithm": "fedavg", "curriculum": {"clients": clients}})
        return describe_experiment(spec)["curriculum"]["clients"]  # type: ignore[no-any-return]

    assert "pace" not in described(batches="all")  # runs from before the field existed can go on
    assert described(batches="all", pace="outer")["pace"] == "outer"
    with pytest.raises(SpecError, match="has no meaning with batches: one") as caught:
        described(pace="outer")
    assert [fault.path for fault in caught.value.errors] == ["curriculum.clients.pace"]


@pytest.mark.parametrize(
    ("layers", "model", "path", "words"),
    [
        ({"times": [0]}, {"name": "mlp", "layers": 2}, "curriculum.layers.times", "has 2 base blocks"),
        ({"times": [1, 2]}, {"name": "mlp", "layers": 2}, "curriculum.layers.times", "begin with 0"),
        ({}, "logistic", "curriculum.layers.order", "no blocks before its head"),
    ],
)
def test_openings_that_do_not_suit_the_model_are_refused(
    layers: dict[str, Any], model: Any, path: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        experiment(tmp_path, {"layers": layers}, model=model)
    assert [fault.path for fault in caught.value.errors] == [path]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"algorithm": "feddf"}, "curriculum.layers"),
        ({"algorithm": "fedkd"}, "curriculum.layers"),
        ({"algorithm": "ifca"}, "curriculum.layers"),
        ({"privacy": {"noise_multiplier": 1.0}}, "privacy.kind"),
        ({"attack": "gaussian"}, "attack"),
        ({"compression": "qsgd"}, "compression"),
        ({"secure_aggregation": {}}, "secure_aggregation"),
    ],
)
def test_what_changes_or_counts_closed_blocks_is_refused(more: dict[str, Any], path: str) -> None:
    spec = parse_spec({"algorithm": "fedavg", "model": "mlp", "curriculum": {"layers": {}}, **more})
    assert path in [fault.path for fault in find_name_faults(spec)]
    plain = parse_spec({"algorithm": "fedavg", "model": "mlp", **more})
    assert path not in [fault.path for fault in find_name_faults(plain)]


def test_openings_are_around_the_algorithm_and_inside_the_other_curricula(tmp_path: Path) -> None:
    layers = {"order": "anti", "times": [0, 3]}
    model = {"name": "mlp", "layers": 2}
    made = experiment(tmp_path, {"layers": layers, "data": {}}, model=model).algorithm
    assert isinstance(made, DataCurriculum)
    assert isinstance(made.base, LayerCurriculum)
    assert (made.base.order, made.base.times) == ("anti", (0, 3))
    even = experiment(tmp_path, {"layers": {"times": "even"}}, model=model).algorithm
    assert even.depends_on_num_rounds()
