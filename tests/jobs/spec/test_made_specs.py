"""Specs that nobody would think of: whatever stands in one, it is read, or refused with its faults."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.server.errors import make_problem
from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import list_parameters
from fedsim.data import DATASETS, PARTITIONS
from fedsim.errors import DataError, DataNotFound, FedsimError, SpecError
from fedsim.models import MODELS
from jobs.settings import Settings
from jobs.spec import JobSpec, json_schema, parse_spec, parse_text
from jobs.spec.resolve import parse_spec_and_names, resolve_spec

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 300),
    st.floats(),
    st.floats(-2, 2),
    st.text(max_size=30),
    st.sampled_from(["", "auto", "../../etc/passwd", "/etc/passwd", "\0", "1e400", "é" * 5, "$ref", "~"]),
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
REFUSALS = (SpecError, DataNotFound, DataError)


def chosen(registry: Any, call: Any, key: str = "name") -> st.SearchStrategy[Any]:
    """An entry of a catalogue with some of its parameters, of any value."""

    def with_parameters(name: str) -> st.SearchStrategy[Any]:
        names = [p.name for p in list_parameters(call(registry[name]))] or ["none"]
        return st.dictionaries(st.sampled_from(names), PLAIN, max_size=3).map(
            lambda given: {key: name, **given}
        )

    names = sorted(registry)
    return st.one_of(st.sampled_from(names), st.sampled_from(names).flatmap(with_parameters), ANYTHING)


def section(name: str) -> st.SearchStrategy[Any]:
    """A section of a spec with some of its fields, of any value."""
    schema = json_schema()
    fields = sorted(schema["$defs"][name]["properties"])
    return st.dictionaries(st.sampled_from(fields), PLAIN, max_size=4) | ANYTHING


SPECS = st.fixed_dictionaries(
    {"algorithm": chosen(ALGORITHMS, lambda entry: entry)},
    optional={
        "name": st.text(max_size=20) | PLAIN,
        "seed": st.integers(0, 2**63) | PLAIN,
        "rounds": st.integers(1, 9) | PLAIN,
        "clients": section("Clients"),
        "data": st.fixed_dictionaries(
            {},
            optional={
                "dataset": chosen(DATASETS, lambda entry: entry[0]),
                "partition": chosen(PARTITIONS, lambda entry: entry[0], "kind"),
                "public": section("Public"),
                "limit": PLAIN,
            },
        )
        | ANYTHING,
        "model": chosen(MODELS, lambda entry: entry) | st.lists(st.sampled_from(sorted(MODELS)), max_size=4),
        "local": section("LocalSection"),
        "curriculum": st.dictionaries(st.sampled_from(["data", "clients"]), section("DataCurriculumSection")),
        "evaluation": section("Evaluation"),
        "resources": section("Resources"),
        "faults": section("FaultsSection"),
        "checkpoint": section("Checkpointing"),
        "extra": ANYTHING,
    },
)


def refusal(data: Any, config: Settings) -> FedsimError | None:
    """Read a spec whole, as the service does; gives the refusal if there is one."""
    try:
        spec = parse_spec_and_names(data)
        resolve_spec(spec, config)
    except REFUSALS as error:
        return error
    # What was taken comes back as it went in, and is taken again.
    assert parse_spec(json.loads(spec.model_dump_json())) == spec
    return None


def try_specs(cases: int, config: Settings) -> Counter[bool]:
    """Read so many specs; counts those that were taken, and those that were refused."""
    seen: Counter[bool] = Counter()

    @few(cases)
    @given(SPECS)
    def check(data: Any) -> None:
        error = refusal(data, config)
        seen[error is None] += 1
        if error is not None:
            assert str(error)
            assert all(fault.path and fault.message for fault in error.errors)
            # Everything in a refusal can be sent.
            make_problem(422, str(error), errors=error.errors)

    check()
    return seen


def few(cases: int) -> Any:
    return settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("home"))


def test_sixty_made_specs_are_read_or_refused(config: Settings) -> None:
    assert sum(try_specs(60, config).values()) >= 60


@pytest.mark.weekly
def test_five_hundred_made_specs_are_read_or_refused(config: Settings) -> None:
    seen = try_specs(500, config)
    assert sum(seen.values()) >= 500
    assert min(seen[True], seen[False]) > 10


@pytest.mark.parametrize("cases", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_made_texts_are_read_or_refused(cases: int) -> None:
    texts = st.text(max_size=200) | ANYTHING.map(json.dumps) | ANYTHING.map(lambda data: yaml.safe_dump(data))

    @few(cases)
    @given(texts)
    def check(text: str) -> None:
        try:
            parse_text(text)
        except SpecError as error:
            faults = error.errors
        else:
            return
        assert [fault.path for fault in faults] == ["spec"]

    check()


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['echo no']",
        "!!python/object:subprocess.Popen {}",
        "!!python/name:os.system",
        "!!binary gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAZlY2hvIG6UhZRSlC4=",
        "!mine {a: 1}",
        "a: &x [1, 2]\nb: *x",
        "a: !!int 3",
        "{<<: {a: 1}, ? [1, 2] : 3}",
    ],
)
def test_tags_anchors_and_objects_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_spec(parse_text(f"algorithm: fedavg\nname: x\nspec:\n  {text}".replace("\nb:", "\n  b:")))


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.npz", "a/../../secret.npz", "~/secret.npz", ""])
@pytest.mark.parametrize("kind", ["npz", "image_folder", "audio_folder", "hugging_face", "table"])
def test_a_path_outside_the_data_roots_is_refused(tmp_path: Path, kind: str, path: str) -> None:
    (tmp_path / "secret.npz").write_bytes(b"not for you")
    config = Settings(home=tmp_path / "home")
    (tmp_path / "home" / "data").mkdir(parents=True)
    dataset = {"name": kind, "path": path, **({"target": "y"} if kind == "table" else {})}
    spec: JobSpec = parse_spec({"algorithm": "fedavg", "data": {"dataset": dataset}})
    with pytest.raises(REFUSALS) as caught:
        resolve_spec(spec, config)
    assert caught.value.errors[0].path.startswith("data.dataset")
    assert "not for you" not in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        ({"name": "synthetic", "examples": 50_000_000, "dims": 100_000}, "data.dataset.dims"),
        ({"name": "synthetic", "classes": 100_000, "dims": 100_000}, "data.dataset.dims"),
        ({"name": "synthetic_images", "examples": 10_000_000, "size": 512}, "data.dataset.size"),
        ({"name": "synthetic_images", "classes": 10_000, "size": 512}, "data.dataset.size"),
    ],
)
def test_data_that_no_machine_would_hold_is_refused(
    config: Settings, dataset: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError, match="use fewer") as caught:
        resolve_spec(parse_spec({"algorithm": "fedavg", "data": {"dataset": dataset}}), config)
    assert caught.value.errors[0].path == path


def test_what_is_drawn_is_not_drawn_to_check_a_spec(config: Settings) -> None:
    # 8 GiB of features, and a client for each of its examples.
    dataset = {"name": "synthetic", "examples": 50_000_000, "dims": 42}
    spec = {"algorithm": "fedavg", "clients": {"total": 10_000_000}, "data": {"dataset": dataset}}
    began = time.monotonic()
    assert resolve_spec(parse_spec(spec), config).num_clients == 10_000_000
    assert time.monotonic() - began < 5
