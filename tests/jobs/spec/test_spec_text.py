"""Specs as they are written: numbers and words, overrides, files and presets."""

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedsim.errors import SpecError
from jobs.spec import apply_overrides, load_spec, parse_spec, preset_text, presets
from jobs.spec.spec_text import CATALOGUE_SECTIONS, dump_spec, parse_text
from jobs.spec.sweep import read_sweep


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "0.00001", "1.0e-05", "10e-6"])
def test_numbers_are_numbers_however_they_are_written(text):
    assert parse_text(f"lr: {text}") == {"lr": 1e-5}


def test_plain_words_stay_words():
    text = "a: no\nb: 12:30\nc: 2020-01-01\nd: 0x10\ne: ~\nf:\ng: true\nh: 1_000\ni: -3\nj: .5"
    expected = {"a": "no", "b": "12:30", "c": "2020-01-01", "d": 16, "e": None, "f": None, "g": True}
    assert parse_text(text) == expected | {"h": "1_000", "i": -3, "j": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "'a' stands twice (line 2"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("a: !secret b", "tag"),
        ("a: &x [1]\nb: *x", "anchors"),
        ("1: 2", "not a text"),
        ("a: [", "line 1"),
        ("a: 1\n---\nb: 2", "document"),
        ("[" * 500, "deeply"),
        ("a: " + "9" * 5000, "digits"),
        ("a: \x00", "character"),
        ("#" * 1_000_001, "longer"),
    ],
    ids=range(12),
)
def test_text_that_is_no_plain_data(text, words):
    with pytest.raises(SpecError) as caught:
        parse_text(text)
    (fault,) = caught.value.errors
    assert fault.path == "spec"
    assert words in fault.message


def test_overrides_open_shorthands_and_defaults():
    data = {"algorithm": "fedprox", "rounds": 5}
    items = ["rounds=3", "algorithm.mu=0.1", "data.partition.beta=0.1", "local.lr=1e-3", "model.name=cnn"]
    result = apply_overrides(data, items)
    assert result == {
        "algorithm": {"name": "fedprox", "mu": 0.1},
        "rounds": 3,
        "data": {"partition": {"kind": "dirichlet", "beta": 0.1, "min_size": 1}},
        "local": {"lr": 0.001},
        "model": {"name": "cnn"},
    }
    assert data == {"algorithm": "fedprox", "rounds": 5}
    assert load_spec("demo", ["data.tests=merged", "data.tests.share=0.3"]).data.tests.share == 0.3


@pytest.mark.parametrize(
    ("written", "item", "expected"),
    [
        ({"attack": "sign_flip"}, "attack.share=0.3", {"attack": {"name": "sign_flip", "share": 0.3}}),
        (
            {"clients": {"sampler": "oort"}},
            "clients.sampler.decay=0.9",
            {"clients": {"sampler": {"name": "oort", "decay": 0.9}}},
        ),
        ({"devices": "phones"}, "devices.dropout=0.1", {"devices": {"fleet": "phones", "dropout": 0.1}}),
        (
            {"devices": "phones"},
            "devices.fleet.link=wifi",
            {"devices": {"fleet": {"name": "phones", "link": "wifi"}}},
        ),
        (
            {"data": {"tests": ["matched", "global"]}},
            "data.tests.share=0.3",
            {"data": {"tests": {"kind": "matched", "also": ["global"], "share": 0.3}}},
        ),
        ({}, "attack.name=sign_flip", {"attack": {"name": "sign_flip"}}),
    ],
)
def test_overrides_open_every_section_that_may_be_one_word(written, item, expected):
    assert apply_overrides({"algorithm": "fedavg", **written}, [item]) == {"algorithm": "fedavg", **expected}


def test_the_form_has_the_same_sections_and_defaults():
    text = (Path(__file__).parents[3] / "api" / "page" / "schema.js").read_text("utf-8")
    rows = re.findall(
        r'^  "?([\w.]+)"?: \{ kind: "\w+", key: "(\w+)", default: (null|"\w+")(.*) \},$', text, re.M
    )
    parameters = {path: more for path, _, _, more in rows if more}
    assert parameters == {"data.partition": ", parameters: { beta: 0.5, min_size: 1 }"}
    found = {path: {key: json.loads(default)} for path, key, default, _ in rows}
    found["data.partition"] |= {"beta": 0.5, "min_size": 1}
    assert found == CATALOGUE_SECTIONS


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, keys in CATALOGUE_SECTIONS.items()
        if None not in keys.values() and "devices" not in path
    ],
)
def test_overrides_start_from_the_defaults_that_a_spec_has(path):
    """Setting one parameter of a section that is not written changes that parameter alone."""
    data = apply_overrides({"algorithm": "fedavg"}, [f"{path}.extra=1"])
    section, default = parse_spec(data), parse_spec({"algorithm": "fedavg"})
    for part in path.split("."):
        section, default = getattr(section, part), getattr(default, part)
    assert section.model_dump() == default.model_dump() | {"extra": 1}


@pytest.mark.parametrize(
    ("local", "items", "expected"),
    [
        ({"epochs": 2, "lr": 0.1}, ["local.steps=7"], (None, 7)),
        ({"steps": 7, "lr": 0.1}, ["local.epochs=2"], (2, None)),
        ({"steps": 7, "lr": 0.1}, ["local.lr=0.1", "local.epochs=null"], (None, 7)),
    ],
)
def test_an_override_takes_the_place_of_what_it_replaces(local, items, expected):
    data = {"algorithm": "fedavg", "local": local}
    made = parse_spec(apply_overrides(data, items)).local
    assert (made.epochs, made.steps, made.lr) == (*expected, 0.1)
    with pytest.raises(SpecError, match="only one of them can be"):
        parse_spec(apply_overrides(data, ["local.epochs=2", "local.steps=7"]))
    assert apply_overrides({"local": "all"}, ["local=3", "rounds=2"])["local"] == 3


def test_another_file_of_a_model_has_another_text():
    data = {"model": {"name": "python", "path": "old.py:Net", "source": "old"}}
    assert apply_overrides(data, ["model.path=new.py:Net"])["model"] == {
        "name": "python",
        "path": "new.py:Net",
    }
    both = ["model.path=new.py:Net", "model.source=new"]
    assert apply_overrides(data, both)["model"]["source"] == "new"


@given(st.text("-+.0-9eExob_:~ tfn", max_size=7))
@example("1e-3")
@example("08")
@example("no")
def test_a_written_text_is_read_as_the_same_text(text):
    assert parse_text(dump_spec({"name": text})) == {"name": text}


def test_wrong_overrides_come_together():
    with pytest.raises(SpecError) as caught:
        apply_overrides({"algorithm": "a", "rounds": 3}, ["rounds", "a..b=1", "rounds.x=1", "seed=["])
    assert [e.path for e in caught.value.errors] == ["set", "set", "seed", "rounds.x"]


def test_specs_are_read_from_files_stdin_and_presets(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text("algorithm: fedavg\nlocal: {lr: 1e-3}\n")
    (tmp_path / "a.json").write_text('{"algorithm": "fedavg",\t"local": {"lr": 1e-3}}')
    spec = load_spec(tmp_path / "a.yaml", ["rounds=2"])
    assert (spec.rounds, spec.local.lr) == (2, 0.001)
    assert load_spec(str(tmp_path / "a.json"), ["rounds=2"]) == spec
    monkeypatch.setattr(sys, "stdin", (tmp_path / "a.yaml").open())
    assert load_spec("-", ["rounds=2"]) == spec
    sys.stdin.close()


@pytest.mark.parametrize("read", [load_spec, read_sweep])
def test_a_text_on_stdin_that_is_not_utf_8_is_a_fault_of_the_spec(read, tmp_path, monkeypatch):
    (tmp_path / "latin.yaml").write_bytes("name: Müller".encode("latin-1"))
    with (tmp_path / "latin.yaml").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SpecError, match="cannot be read: 'utf-8' codec"):
            read("-")


def test_a_missing_spec_is_named_with_the_nearest_preset(tmp_path):
    with pytest.raises(SpecError) as caught:
        load_spec("dmeo")
    assert caught.value.errors == [("spec", "dmeo", "is neither a file nor a preset", "did you mean 'demo'?")]
    with pytest.raises(SpecError, match=r"presets are: .*demo"):
        load_spec("nothing-like-it")
    with pytest.raises(SpecError, match=r"there is no file .*/no/such/file\.yaml"):
        load_spec(Path("no/such/file.yaml"))
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(SpecError, match="not a mapping"):
        load_spec(tmp_path / "empty.yaml", ["rounds=3"])
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "bytes.yaml")


def test_kdias_presets_augment_as_its_authors_code_does():
    said = {
        n: load_spec(f"kdia-{n}").data.dataset.params["augment"] for n in ("cifar10", "cifar100", "cinic10")
    }
    assert said == {
        "cifar10": ["reflect_crop", "flip"],
        "cifar100": ["crop", "flip", "rotate"],
        "cinic10": ["crop", "flip"],
    }


@pytest.mark.parametrize("name", list(presets()))
def test_presets_open_with_how_to_run_them_and_parse(name):
    lines = preset_text(name).splitlines()
    assert lines[0].startswith("# ")
    assert presets()[name] == lines[0][2:]
    assert "fedsim run" in lines[1]
    assert load_spec(name).name == name
