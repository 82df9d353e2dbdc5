from typing import Annotated, Literal

import pytest

from fedsim.base.parameters import (
    Positive,
    Range,
    Share,
    describe_mismatch,
    find_parameter_faults,
    list_parameters,
    suggest_name,
)
from fedsim.data import DATASETS, PARTITIONS


def example(
    _places: object,
    *,
    beta: Positive,
    share: Share = 0.5,
    size: Annotated[int, Range(1, 9)] | None = None,
    order: Literal["up", "down"] = "up",
    shape: tuple[int, ...] = (),
    shuffled: bool = False,
) -> None: ...


def test_parameters_are_the_keyword_only_arguments():
    found = list_parameters(example)
    assert [p.name for p in found] == ["beta", "share", "size", "order", "shape", "shuffled"]
    assert [p.required for p in found] == [True] + [False] * 5


def test_right_values_have_no_fault():
    given = {"beta": 1, "share": 1.0, "size": None, "order": "down", "shape": [1, 2], "shuffled": True}
    assert find_parameter_faults(example, given) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beta", 0, "has to be a number above 0"),
        ("beta", "1", "has to be a number above 0"),
        ("beta", float("nan"), "has to be a number above 0"),
        ("share", 1.5, "has to be a number of at least 0 and of at most 1"),
        ("size", 0, "has to be a whole number of at least 1 and of at most 9 or null"),
        ("size", True, "has to be a whole number of at least 1 and of at most 9 or null"),
        ("size", 2.0, "has to be a whole number of at least 1 and of at most 9 or null"),
        ("order", "left", "has to be one of 'up', 'down'"),
        ("shape", 3, "has to be a list, each a whole number"),
        ("shape", [1.5], "has to be a list, each a whole number"),
        ("shuffled", 1, "has to be true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_has_to_be(name: str, value: object, message: str):
    faults = find_parameter_faults(example, {"beta": 1.0, name: value})
    assert [(f.path, f.message) for f in faults] == [(name, message)]


def test_all_faults_come_back_at_once():
    faults = find_parameter_faults(example, {"shared": 1, "share": 2})
    assert [fault.path for fault in faults] == ["shared", "beta", "share"]
    assert faults[0].hint == "did you mean 'share'?"


def test_unknown_names_the_nearest_or_all():
    assert suggest_name("digit", DATASETS) == "did you mean 'digits'?"
    assert suggest_name("zzz", ["b", "a"]) == "one of: a, b"


@pytest.mark.parametrize("entry", [*DATASETS.values(), *PARTITIONS.values()])
def test_every_registered_default_passes_its_own_check(entry):
    for parameter in list_parameters(entry[0]):
        if not parameter.required:
            assert describe_mismatch(parameter.default, parameter.kind) is None, parameter
    assert entry.summary
