"""What cannot be dealt out is refused before anything runs, with the spec's own words for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.data import DATASETS, Dataset, DatasetEntry, Examples
from fedsim.data.places import DataRoots
from fedsim.errors import DataError, FieldError, SpecError
from jobs.run.partition_report import make_partition_report
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.checks.data_checks import spec_path, use_spec_paths
from jobs.spec.resolve import resolve_spec


def spec_of(partition: Any, clients: int = 4, **data: Any) -> JobSpec:
    data = {"dataset": {"name": "npz", "path": "mine.npz"}, **data, "partition": partition}
    return parse_spec({"algorithm": "fedavg", "clients": {"total": clients}, "data": data})


def faults(spec: JobSpec, settings: Settings) -> list[FieldError]:
    try:
        resolve_spec(spec, settings)
    except SpecError as error:
        return error.errors
    return []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of 40 examples, the first 20 of class 0, then 10 of each of two more; four owners, with 10 each."""
    y = np.repeat([0, 0, 1, 2], 10)
    x, owners = np.zeros((40, 3), np.float32), np.arange(40) % 4
    tests = {"x_test": x[::8], "y_test": y[::8]}
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, groups_train=owners, **tests)
    np.savez(
        tmp_path / "both.npz",
        x_train=x,
        y_train=y,
        groups_train=owners,
        groups_test=np.arange(5) + 1,
        **tests,
    )
    several = np.eye(40, 3, dtype=np.float32)
    np.savez(tmp_path / "several.npz", x=x, y=several)
    np.savez(tmp_path / "untested.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    return Settings(home=tmp_path / "home", data_roots=(tmp_path,))


@pytest.mark.parametrize(
    ("partition", "data", "clients", "found"),
    [
        ("natural", {}, 4, []),
        ("natural", {}, 5, ["clients.total"]),
        ({"kind": "natural", "groups_per_client": 2}, {}, 3, ["data.partition.groups_per_client"]),
        ({"kind": "pathological", "classes": 4}, {}, 4, ["data.partition.classes"]),
        ({"kind": "pathological", "classes": 1}, {}, 2, ["data.partition.classes"]),
        # The first 20 are of one class: what is left of the others is not known without a look at each.
        ({"kind": "pathological", "classes": 1}, {"limit": 20}, 2, []),
        ({"kind": "pathological", "classes": 1}, {"limit": 35}, 2, ["data.partition.classes"]),
        ({"kind": "dirichlet", "min_size": 10}, {}, 4, []),
        ({"kind": "dirichlet", "min_size": 11}, {}, 4, ["data.partition.min_size"]),
        (
            {"kind": "dirichlet", "min_size": 10},
            {"public": {"fraction": 0.1}},
            4,
            ["data.partition.min_size"],
        ),
        # With the 5 test examples.
        ({"kind": "dirichlet", "min_size": 11}, {"tests": "merged"}, 4, []),
        ({"kind": "dirichlet", "min_size": 12}, {"tests": "merged"}, 4, ["data.partition.min_size"]),
        ("iid", {"tests": "merged"}, 45, []),
        ("iid", {"tests": "merged"}, 46, ["clients.total"]),
        # Of the test examples nobody knows whose they are.
        ("natural", {"tests": "merged"}, 4, ["data.partition.kind"]),
        ("natural", {"tests": "merged", "dataset": {"name": "npz", "path": "both.npz"}}, 6, []),
        (
            "natural",
            {"tests": "merged", "dataset": {"name": "npz", "path": "both.npz"}},
            7,
            ["clients.total"],
        ),
        ("difficulty", {"dataset": {"name": "npz", "path": "several.npz"}}, 4, ["data.partition.kind"]),
        (
            "iid",
            {"tests": "matched", "dataset": {"name": "npz", "path": "untested.npz"}},
            4,
            ["data.tests.kind"],
        ),
        ("iid", {"tests": "labels"}, 3, []),
        ("iid", {"tests": "labels"}, 4, ["data.tests.kind"]),
        # What is drawn is not here yet: how many examples its classes will have, nobody knows.
        ({"kind": "pathological", "classes": 11}, {"dataset": "synthetic"}, 4, ["data.partition.classes"]),
        ({"kind": "pathological", "classes": 1}, {"dataset": "synthetic"}, 4, []),
    ],
)
def test_what_arithmetic_tells_is_refused_before_the_run_and_nothing_else(
    settings: Settings, partition: Any, data: dict[str, Any], clients: int, found: list[str]
) -> None:
    spec = spec_of(partition, clients, **data)
    told = faults(spec, settings)
    assert [fault.path for fault in told] == found
    assert all(fault.message and fault.hint for fault in told)
    if not found and data.get("dataset") != "synthetic" and "limit" not in data and clients < 10:
        assert resolve_spec(spec, settings).load_population()


def test_what_only_dealing_tells_has_the_same_paths(settings: Settings) -> None:
    spec = spec_of({"kind": "difficulty", "base": {"kind": "pathological", "classes": 2}}, limit=20)
    assert not faults(spec, settings)
    with pytest.raises(SpecError) as caught:
        make_partition_report(spec, settings, lambda phase: None)
    assert [fault.path for fault in caught.value.errors] == ["data.partition.base.classes"]


def test_a_data_set_that_is_not_here_is_refused_nothing(tmp_path: Path) -> None:
    nowhere = Settings(home=tmp_path, data_roots=(tmp_path / "nothing",))
    for partition in (
        "natural",
        {"kind": "pathological", "classes": 11},
        {"kind": "dirichlet", "min_size": 99_999},
    ):
        assert not faults(spec_of(partition, dataset="mnist", download=True), nowhere)
    few = spec_of("iid", 100, dataset="mnist", download=True, limit=50)
    assert [fault.path for fault in faults(few, nowhere)] == ["clients.total"]
    few = spec_of("iid", 100, dataset="mnist", download=True, limit=50, tests="merged")
    assert not faults(few, nowhere)


def test_of_a_set_that_is_drawn_nobody_knows_how_many_own_it(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A look at it draws a single example, which has a single owner."""

    def owned(_places: DataRoots, *, examples: int = 40, test_examples: int = 8) -> Dataset:
        parts = (
            Examples(np.zeros((n, 3), np.float32), np.arange(n) % 2, np.arange(n) % 8)
            for n in (examples, test_examples)
        )
        return Dataset("owned", *parts, 2, (3,), ("a", "b"))

    entry = DatasetEntry(owned, "drawn", "nowhere", "nothing to do", check_parameters=lambda **_: None)
    monkeypatch.setattr(DATASETS, "own", {**DATASETS.own, "owned": entry})
    assert not faults(spec_of("natural", 8, dataset="owned"), settings)
    assert [fault.path for fault in faults(spec_of("natural", 41, dataset="owned"), settings)] == [
        "clients.total"
    ]


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ("num_clients", "clients.total"),
        ("public", "data.public.fraction"),
        ("tests", "data.tests.kind"),
        ("classes", "data.partition.classes"),
        ("base.kind", "data.partition.base.kind"),
        ("dataset.attribute", "data.dataset.attribute"),
        ("model.1.pretrained", "model.1.pretrained"),
    ],
)
def test_an_argument_has_its_place_in_the_spec(argument: str, path: str) -> None:
    assert spec_path(argument) == path
    other = DataError("truncated")
    assert use_spec_paths(other) is other


def test_the_parameters_of_data_and_models_keep_their_part(settings: Settings) -> None:
    """CelebA's attributes are known once it is here, so that its run may be the first to see them."""
    experiment = resolve_spec(spec_of("iid"), settings)
    experiment = replace(experiment, dataset=("npz", {"path": "mine.npz", "augment": ["flip"]}))
    with pytest.raises(SpecError) as caught:
        experiment.load_population()
    assert [fault.path for fault in caught.value.errors] == ["dataset.augment"]


def test_a_validation_set_has_an_example(settings: Settings) -> None:
    spec = spec_of("iid")
    few, some = (
        spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"validation": share})})
        for share in (0.01, 0.1)
    )
    assert [fault.path for fault in faults(few, settings)] == ["evaluation.validation"]
    assert not faults(some, settings)
