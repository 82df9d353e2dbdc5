"""Sweeps as they are written: the runs that they ask for, and what is wrong with those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import SpecError
from jobs.spec.sweep import members, read_sweep

SWEEP = """
base: base.yaml
set: {rounds: 3}
axes:
  local.lr: [0.1, 0.01]
  strength of mu: {path: algorithm.mu, values: [0, 1.5]}
  data: {iid: data.partition=iid, skewed: {data.partition.kind: dirichlet, data.partition.beta: 0.1}}
seeds: [1, 2, 3]
labels: {owner: ada}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text("algorithm: fedprox\nrounds: 50\nlocal: {lr: 1.0}\n")
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP)
    return path


def test_every_cell_has_a_run_with_every_seed(file: Path) -> None:
    sweep = read_sweep(file, ["clients.total=10"])
    runs = members(sweep)
    assert (sweep.name, len(runs), len({run.spec_hash for run in runs})) == ("mine", 24, 24)
    assert [run.run.seed for run in runs] == [1] * 8 + [2] * 8 + [3] * 8
    last = runs[-1]
    assert last.run.labels == {"local.lr": "0.01", "strength of mu": "1.5", "data": "skewed"}
    spec = last.spec
    assert (spec.rounds, spec.local.lr, spec.clients.total, spec.seed) == (3, 0.01, 10, 3)
    assert (spec.algorithm.params, spec.data.partition.params["beta"]) == ({"mu": 1.5}, 0.1)
    assert spec.name == "mine: lr=0.01, strength of mu=1.5, skewed, seed 3"
    own = {"group": "mine", "owner": "ada", "seed": "3", "data": "skewed"}
    assert last.labels == {**own, "local.lr": "0.01", "strength-of-mu": "1.5"}


def test_a_run_keeps_its_mark_whatever_else_is_in_the_grid(file: Path) -> None:
    first = {run.spec_hash for run in members(read_sweep(file))}
    file.write_text(SWEEP.replace("0.1, 0.01]", "0.1, 0.01, 0.001]").replace("[1, 2, 3]", "[1, 2, 3, 4]"))
    more = {run.spec_hash for run in members(read_sweep(file))}
    assert len(more) == 48
    assert first < more


def test_how_runs_are_executed_tells_them_apart_where_an_axis_is_about_it(file: Path) -> None:
    """Whether a result depends on the workers is asked of two jobs, not of one that is shown twice."""
    grid: dict[str, Any] = {"base": "demo", "seeds": [1], "axes": {"resources.workers": [1, 2]}}
    runs = members(read_sweep(grid))
    assert [run.spec.resources.workers for run in runs] == [1, 2]
    assert len({run.spec_hash for run in runs}) == len({run.key for run in runs}) == 2
    plain = {run.spec_hash for run in members(read_sweep(file))}
    elsewhere = read_sweep(file, ["resources.workers=7", "checkpoint.every=3"])
    assert {run.spec_hash for run in members(elsewhere)} == plain


def test_the_smallest_sweep_is_a_base_and_its_seeds() -> None:
    runs = members(read_sweep({"base": {"algorithm": "fedavg"}, "seeds": [5]}))
    assert [(run.spec.seed, run.spec.name) for run in runs] == [(5, "sweep: seed 5")]


def test_a_value_that_is_a_mapping_is_named_in_words() -> None:
    partitions = ["iid", {"kind": "dirichlet", "beta": 0.1}, {"kind": "classes", "classes": 2}]
    axes = {"data.partition": partitions, "local": [{"epochs": 1}]}
    runs = members(read_sweep({"base": "demo", "seeds": [1], "axes": axes}))
    assert [run.spec.name for run in runs][1:] == [
        "sweep: dirichlet beta=0.1, epochs=1, seed 1",
        "sweep: classes classes=2, epochs=1, seed 1",
    ]
    axes = {"local.lr": [0.1], "algorithm": ["fedprox"], "mu": {"path": "algorithm.mu", "values": [1]}}
    (run,) = members(read_sweep({"base": "demo", "seeds": [1], "axes": axes}))
    assert run.spec.name == "sweep: lr=0.1, fedprox, mu=1, seed 1"
    assert runs[1].labels["data.partition"] == "dirichlet beta=0.1"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"base": "dmo"}, ["did you mean 'demo'"]),
        ({"axs": {}}, ["axs", "not a field of a sweep", "did you mean 'axes'"]),
        ({"seeds": []}, ["seeds", "is empty"]),
        ({"seeds": [1, 2, 1]}, ["seeds", "twice"]),
        ({"seeds": "x", "axes": [1]}, ["seeds", "axes", "2 errors"]),
        ({"axes": {"a": 3}}, ["axes.a", "is no axis"]),
        ({"axes": {"local.lr": []}}, ["axes.local.lr", "is no axis"]),
        ({"axes": {"local.lr": [0.1, 0.2, 0.1]}}, ["axes.local.lr", "two values with one name"]),
        ({"axes": {"a": {"x": [3]}}}, ["axes.a.x", "nothing to set"]),
        ({"axes": {"a": {"x": 3}}}, ["axes.a.x", "nothing to set"]),
        ({"set": ["rounds"]}, ["PATH=VALUE", "in seed 1"]),
        (
            {"axes": {"algorithm.mu": [0.1, 1], "algorithm": ["fedprox"]}},
            ["'0.1, fedprox, seed 1' and '1, fedprox, seed 1' are the same run", "before its parts"],
        ),
        ({"axes": {"local.lr": [1, 1.0]}}, ["are the same run"]),
        ({"axes": {"seed": [1, 2]}}, ["are the same run"]),
        (
            {"axes": {"rouns": [1], "local.lr": [-1, 0.1]}},
            ["rouns", "did you mean 'rounds'", "in 1, -1, seed 1"],
        ),
        ({"axes": {"a": list(range(101)), "b": list(range(100))}}, ["10100", "too many"]),
        ({"priority": 5000, "labels": {"a b": "c"}}, ["priority", "label's key"]),
    ],
)
def test_what_is_wrong_is_said_all_at_once(change: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        members(read_sweep({"base": "demo", "seeds": [1], **change}))
    for part in parts:
        assert part in str(caught.value)


def test_a_python_model_of_an_axis_is_part_of_the_run(tmp_path: Path) -> None:
    """A changed file is another run, and the service needs no file."""
    (tmp_path / "net.py").write_text("class Net: ...")
    (tmp_path / "sweep.yaml").write_text(
        "base: demo\nseeds: [1]\naxes: {net: {own: 'model={name: python, path: net.py:Net}'}}\n"
    )
    [before] = members(read_sweep(tmp_path / "sweep.yaml"))
    assert before.body()["model"]["source"] == "class Net: ..."
    (tmp_path / "net.py").write_text("class Net: pass")
    [after] = members(read_sweep(tmp_path / "sweep.yaml"))
    assert before.spec_hash != after.spec_hash


def test_a_file_that_is_no_sweep_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_sweep(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(SpecError, match="is not a mapping"):
        read_sweep(tmp_path / "list.yaml")
