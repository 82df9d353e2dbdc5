"""Specs as data: shorthands, defaults, the schema, and faults that are all named with the way out."""

import json
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsim.errors import SpecError
from jobs.spec import JobSpec, json_schema, parse_spec, preset_text, presets
from jobs.spec.spec_text import parse_text


def faults(data):
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    return caught.value.errors


def test_an_algorithm_is_a_whole_spec():
    spec = parse_spec({"algorithm": "fedavg"})
    assert spec.name == "fedavg"
    assert spec.algorithm.name == "fedavg"
    assert (spec.clients.total, spec.clients.fraction, spec.rounds) == (50, 0.2, 20)
    assert spec.data.dataset.name == "digits"
    assert spec.data.partition.kind == "dirichlet"
    assert spec.data.partition.params == {"beta": 0.5, "min_size": 1}
    assert spec.model.name == "mlp"


def test_shorthands_and_mappings_are_the_same_spec():
    short = {"algorithm": "fedavg", "model": "mlp", "data": {"dataset": "digits", "partition": "iid"}}
    long = {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "data": {"dataset": {"name": "digits"}, "partition": {"kind": "iid"}},
    }
    assert parse_spec(short) == parse_spec(long)


@pytest.mark.parametrize(
    "local", [{}, {"steps": 7}, {"epochs": 3, "steps": None}, {"epochs": None, "steps": 3}]
)
def test_a_spec_survives_the_way_through_json(local):
    spec = parse_spec({"algorithm": {"name": "fedprox", "mu": 0.1}, "local": local})
    assert parse_spec(json.loads(spec.model_dump_json())) == spec


def test_steps_replace_the_default_epochs():
    assert parse_spec({"algorithm": "fedavg", "local": {"steps": 7}}).local.epochs is None


WRONG = [
    ({"clients": {"fracton": 0.1}}, "clients.fracton", 0.1, "did you mean 'fraction'?"),
    ({"epochs": 3}, "epochs", 3, "did you mean 'local.epochs'?"),
    ({"algoritm": "fedavg"}, "algoritm", "fedavg", "did you mean 'algorithm'?"),
    ({"zzz": 1}, "zzz", 1, "fields here: name, seed, rounds"),
    ({"data": {"dateset": "digits"}}, "data.dateset", "digits", "did you mean 'dataset'?"),
    ({"clients": {"fraction": 0}}, "clients.fraction", 0, "above 0 and at most 1"),
    ({"clients": {"fraction": 1.5}}, "clients.fraction", 1.5, "above 0 and at most 1"),
    ({"clients": {"fraction": "0.1"}}, "clients.fraction", "0.1", "a number above 0"),
    ({"clients": {"fraction": float("nan")}}, "clients.fraction", "nan", "a number above 0"),
    ({"clients": {"total": 0}}, "clients.total", 0, "from 1 to 10_000_000"),
    ({"clients": {"total": 10_000_001}}, "clients.total", 10_000_001, "from 1 to 10_000_000"),
    ({"clients": {"total": True}}, "clients.total", True, "a whole number"),
    ({"clients": {"total": 10.0}}, "clients.total", 10.0, "a whole number"),
    ({"clients": 10}, "clients", 10, "a mapping with total, fraction"),
    ({"rounds": -1}, "rounds", -1, "from 1 to 100_000"),
    ({"rounds": 100_001}, "rounds", 100_001, "from 1 to 100_000"),
    ({"rounds": None}, "rounds", None, "a whole number"),
    ({"seed": -1}, "seed", -1, "from 0 to"),
    ({"seed": 2**70}, "seed", str(2**70), "from 0 to"),
    ({"name": "x" * 101}, "name", "x" * 101, "1 to 100 characters"),
    ({"name": "a\x00b"}, "name", "a\x00b", "plain"),
    ({"algorithm": ""}, "algorithm.name", "", "1 to 100 characters"),
    ({"algorithm": 3}, "algorithm", 3, "a text or a mapping with name"),
    ({"algorithm": {"mu": 0.1}}, "algorithm.name", None, "a text"),
    ({"algorithm": {"name": "a", "mu": float("inf")}}, "algorithm.mu", "inf", "plain"),
    ({"model": []}, "model", [], "allowed"),
    ({"model": ["mlp", {"nme": "lenet5"}]}, "model.1.name", None, "allowed"),
    ({"data": {"dataset": {"root": "x"}}}, "data.dataset.name", None, "a text"),
    ({"data": {"partition": {"beta": 1}}}, "data.partition.kind", None, "a text"),
    ({"data": {"limit": 0}}, "data.limit", 0, "from 1 to 1_000_000_000 or null"),
    ({"data": {"download": "yes"}}, "data.download", "yes", "true or false"),
    ({"data": {"download": 1}}, "data.download", 1, "true or false"),
    ({"data": {"public": {"fraction": 1.0}}}, "data.public.fraction", 1.0, "allowed: a number of at least 0"),
    ({"local": {"epochs": 2, "steps": 3}}, "local.steps", 3, "leave one of them out"),
    ({"local": {"epochs": None}}, "local.epochs", None, "give one of them"),
    ({"local": {"lr": 0}}, "local.lr", 0, "above 0"),
    ({"local": {"lr_decay": {"alpha": -1}}}, "local.lr_decay.alpha", -1, "from 0 to"),
    ({"local": {"momentum": 1}}, "local.momentum", 1, "below 1"),
    ({"local": {"batch_size": -5}}, "local.batch_size", -5, "from 1 to"),
    ({"data": {"tests": "local"}}, "data.tests.kind", "local", "'merged'"),
    ({"data": {"tests": {"kind": "merged", "share": 1.0}}}, "data.tests.share", 1.0, "below 1"),
    ({"data": {"tests": {"kind": "matched", "share": 0.5}}}, "data.tests.share", 0.5, "kind: merged"),
    ({"evaluation": {"personal": "sometimes"}}, "evaluation.personal", "sometimes", "'always'"),
    ({"evaluation": {"personal": True}}, "evaluation.personal", True, "'auto'"),
    ({"resources": {"workers": 0}}, "resources.workers", 0, "or 'auto'"),
    ({"resources": {"workers": "many"}}, "resources.workers", "many", "or 'auto'"),
    ({"resources": {"server_gpus": 2}}, "resources.server_gpus", 2, "from 0 to 1"),
    ({"resources": {"server_gpus": 0.12345}}, "resources.server_gpus", 0.12345, "steps of 0.0001"),
    ({"resources": {"gpus_per_worker": 1.5}}, "resources.gpus_per_worker", 1.5, "a whole number of GPUs"),
    ({"resources": {"graphs": True}}, "resources.graphs", True, "set gpus_per_worker"),
    ({"resources": {"stack": 0}}, "resources.stack", 0, "'off'"),
    ({"resources": {"stack": "on"}}, "resources.stack", "on", "'off'"),
    ({"faults": {"client_error": "stop"}}, "faults.client_error", "stop", "'skip'"),
    ({"curriculum": {"data": {"score": "loss"}}}, "curriculum.data.score", "loss", "'global_loss'"),
    ({"curriculum": {"data": {"pacing": "sqrt"}}}, "curriculum.data.pacing", "sqrt", "'root'"),
    ({"curriculum": {"data": {"b": 1.5}}}, "curriculum.data.b", 1.5, "from 0 to 1"),
    ({"curriculum": {"data": {"c": 1}}}, "curriculum.data.c", 1, "fields here: pacing, a, b"),
    ({"checkpoint": {"every": -1}}, "checkpoint.every", -1, "from 0 to"),
    ({"faults": {"max_restarts": 101}}, "faults.max_restarts", 101, "from 0 to 100"),
]


@pytest.mark.parametrize(
    ("part", "path", "value", "hint"), WRONG, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_wrong_shape_is_named_with_its_value_and_the_way_out(part, path, value, hint):
    (fault,) = faults({"algorithm": "fedavg"} | part)
    assert fault.path == path
    assert fault.value == value
    assert type(fault.value) is type(value)
    assert fault.message
    assert hint in fault.hint


def test_the_algorithm_is_the_one_thing_that_must_be_there():
    (fault,) = faults({})
    assert fault == ("algorithm", None, "is missing", "the smallest spec is: algorithm: fedavg")


@pytest.mark.parametrize("data", [None, [], "fedavg", 3])
def test_a_spec_is_a_mapping(data):
    (fault,) = faults(data)
    assert (fault.path, fault.value) == ("spec", data)


def test_all_faults_come_together():
    found = faults({"rounds": -1, "clients": {"total": "x", "fraction": 2}, "modle": "mlp", "name": "\x01"})
    assert sorted(f.path for f in found) == [
        "algorithm",
        "clients.fraction",
        "clients.total",
        "modle",
        "name",
        "rounds",
    ]


def test_what_no_spec_can_hold():
    cycle: dict = {"name": "a"}
    cycle["self"] = cycle
    assert faults({"algorithm": cycle})[0].path == "spec"
    deep: dict = {}
    for _ in range(40):
        deep = {"x": deep}
    assert "deeply" in faults({"algorithm": {"name": "a", "x": deep}})[0].message
    assert faults({"algorithm": {"name": "a", "x": {1, 2}}})[0].path == "algorithm.x"
    assert faults({"algorithm": {"name": "a", 3: 1}})[0].value == 3
    assert "values" in faults({"algorithm": {"name": "a", "x": [0] * 20_000}})[0].message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*JobSpec.model_fields, "checkpoint", "x"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(FIELDS, JSON, max_size=6))
def test_any_mapping_is_a_spec_or_a_spec_error(data):
    try:
        spec = parse_spec(data)
    except SpecError as error:
        sendable(error)
    else:
        assert parse_spec(json.loads(spec.model_dump_json())) == spec


def sendable(error):
    assert error.errors
    json.dumps([e._asdict() for e in error.errors], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["\ud800", "\x00", "x" * 100_000])
def test_texts_that_cannot_be_sent_or_stored_are_refused_in_a_sendable_way(text):
    for data in ({"algorithm": text}, {text: 1}, {"algorithm": {"name": "a", text: 1}}, {"name": text}):
        with pytest.raises(SpecError) as caught:
            parse_spec(data)
        sendable(caught.value)


def test_the_schema_accepts_what_the_parser_accepts():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in presets():
        assert validator.is_valid(parse_text(preset_text(name)))
    assert validator.is_valid({"algorithm": "fedavg"})
    assert validator.is_valid(parse_spec({"algorithm": "fedavg"}).model_dump(mode="json"))
    assert not validator.is_valid({"algorithm": "fedavg", "rounds": 0})
    assert not validator.is_valid({})


def test_the_spec_needs_no_heavy_library():
    code = "import sys, jobs.spec; print(sorted({'torch', 'ray', 'sqlalchemy', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
