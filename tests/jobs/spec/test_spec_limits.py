"""What a spec's text may cost to read: sizes, numbers of values, depths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import Parameter, describe_mismatch, list_parameters
from fedsim.core.optimizers import OPTIMIZERS
from fedsim.core.schedules import SCHEDULES
from fedsim.data import DATASETS, PARTITIONS
from fedsim.errors import SpecError
from fedsim.models import MODELS
from fedsim.samplers import SAMPLERS
from fedsim.uploads import AGGREGATORS, ATTACKS, COMPRESSORS
from jobs.spec import JobSpec, parse_spec
from jobs.spec.checks.name_checks import find_name_faults
from jobs.spec.error_messages import shorten_value
from jobs.spec.spec_text import apply_overrides, parse_text, set_fields

NAMES = {
    "algorithm": "fedavg",
    "model": "mlp",
    "data.dataset": "digits",
    "data.partition": "iid",
    "local.optimizer": "sgd",
    "clients.sampler": "oort",
}
"""A name for each section that takes any parameter."""

PAIRS = "".join(f'"{number}": 1,' for number in range(60_000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("k: " + "x" * 100_000, "longer than 100,000 characters, which is the most for YAML"),
        ("k: [" + "1," * 20_000 + "]", "more than 20,000 keys and values"),
        ('{"k": [' + "{}," * 20_000 + "{}]}", "more than 20,000 keys and values"),
        ("{" + PAIRS + '"59999": 1}', "'59999' stands twice"),
        ("{" + '"a": 1,' * 20_000, "property name"),
        ('{"a":' * 50 + "1" + "}" * 50, "deeply"),
        ('{"a":' * 900 + "1" + "}" * 900, "deeply"),
    ],
    ids=["long", "many", "many-as-json", "twice", "broken", "deep", "deeper"],
)
def test_a_text_that_would_take_long_to_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_text(text)
    (fault,) = caught.value.errors
    assert fault.path == "spec"
    assert words in fault.message


def test_a_path_without_end_is_refused() -> None:
    deep = ".".join("a" * 1001)
    for overridden in (lambda: apply_overrides({}, [f"{deep}=1"]), lambda: set_fields({}, {deep: 1})):
        with pytest.raises(SpecError) as caught:
            overridden()
        (fault,) = caught.value.errors
        assert (fault.message, len(fault.path)) == ("is a path of 1,001 parts", 200)


def test_a_value_too_deep_to_be_written_out_is_named_so() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(RecursionError):
        json.dumps(value)
    assert shorten_value(value) == "a value that is nested too deeply to be shown"


def list_catalogue() -> Iterator[tuple[str, Parameter]]:
    """Yield every parameter of fedsim's own algorithms, data sets, models and so on, with its place."""
    entries: dict[str, Mapping[str, Any]] = {
        "algorithm": ALGORITHMS.own,
        "dataset": {name: entry.load for name, entry in DATASETS.own.items()},
        "partition": {name: entry.make for name, entry in PARTITIONS.own.items()},
        "model": MODELS.own,
        "sampler": SAMPLERS,
        "attack": ATTACKS,
        "aggregation": AGGREGATORS,
        "compression": COMPRESSORS,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
    }
    for kind, named in entries.items():
        for name, entry in named.items():
            yield from ((f"{kind} {name}: {each.name}", each) for each in list_parameters(entry))


def test_every_whole_number_of_the_catalogue_has_a_bound() -> None:
    # Fractions may be that large, and a seed is no count.
    found = [(place, each) for place, each in list_catalogue() if "float" not in str(each.kind)]
    unbounded = [place for place, each in found if describe_mismatch(2**31, each.kind) is None]
    assert {place.rpartition(" ")[2] for place in unbounded} == {"seed"}


def test_every_whole_number_of_a_spec_has_a_bound() -> None:
    def walk(node: Any, path: str = "spec") -> Iterator[tuple[str, Any]]:
        if isinstance(node, dict) and node.get("type") == "integer":
            yield path, node.get("maximum")
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            yield from walk(value, f"{path}.{key}")

    found = dict(walk(JobSpec.model_json_schema()))
    assert len(found) > 10
    assert {path for path, maximum in found.items() if maximum is None} == set()


def test_a_count_that_no_run_has_is_refused_with_its_bound() -> None:
    data = {"algorithm": {"name": "feddf", "steps": 2**31}, "model": {"name": "mlp", "layers": 1001}}
    faults = {fault.path: fault for fault in find_name_faults(parse_spec(data))}
    assert "of at most 10,000,000" in faults["algorithm.steps"].message
    assert "of at most 1,000" in faults["model.layers"].message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        ([1, 2**60], "[1, 1152921504606846976]"),
        (10**100, "1" + "0" * 100),
        (10**200, "a whole number of 665 bits"),
        (10**5000, "a whole number of 16610 bits"),
        ([10**5000], "a value with a whole number that is too long to be shown"),
    ],
    ids=["exact", "rounded", "inside", "long", "longer", "longest", "longest inside"],
)
def test_an_error_shows_no_number_that_a_client_cannot_read(value: Any, shown: Any) -> None:
    assert shorten_value(value) == shown


def test_thousands_of_unknown_parameters_look_for_a_hundred_names(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = list[str]()
    monkeypatch.setattr("difflib.get_close_matches", lambda word, *_, **__: searches.append(word) or [])
    many = {f"k{number}": 0 for number in range(9000)}
    for path, name in NAMES.items():
        section: Any = {"kind" if path == "data.partition" else "name": name, **many}
        for key in reversed(path.split(".")):
            section = {key: section}
        faults = find_name_faults(parse_spec({"algorithm": "fedavg", **section}))
        assert [fault.message for fault in faults].count("no such parameter") == 9000
    assert len(searches) == 600


@pytest.mark.parametrize("name", ["two\nlines", "hidden\u202emark", "tab\t"])
def test_a_name_is_one_line_of_printable_characters(name: str) -> None:
    (fault,) = find_name_faults(parse_spec({"algorithm": "fedavg", "name": name}))
    assert fault.path == "name"
    assert str(fault.value).isascii()


def test_no_spec_starts_thousands_of_workers_on_a_core() -> None:
    """Each worker is a process: 10,000 of them would take a machine down."""
    with pytest.raises(SpecError) as caught:
        parse_spec({"algorithm": "fedavg", "resources": {"workers": 10_000, "cpus_per_worker": 0.0001}})
    (fault,) = caught.value.errors
    assert (fault.path, fault.message) == ("resources.cpus_per_worker", "is too small")
    assert "0.05" in fault.hint
