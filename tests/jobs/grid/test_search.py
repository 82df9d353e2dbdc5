"""Tables that take values from a search: the winners of the validation set, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.errors import SettingsError
from jobs.grid import search as searches
from jobs.grid.card import write_report
from jobs.grid.journal import Journal
from jobs.grid.markdown import render
from jobs.grid.runner import run_table
from jobs.grid.search import choose_values, is_searched, load_searches
from jobs.grid.table import Table, list_tables, load_table, read_table
from tests.jobs.grid.small_table import entry

SEARCH = """
page: kdia
title: A search
preset: demo
set: [rounds=2]
axes:
  rate: {low: local.lr=0.01, high: local.lr=0.1}
  method:
    FedAvg: algorithm=fedavg
    FedProx, mu 0.1: "algorithm={name: fedprox, mu: 0.1}"
    FedProx, mu 1: "algorithm={name: fedprox, mu: 1.0}"
rows: [method]
columns: [rate]
seeds: [9]
metric: global_validation_accuracy
"""

TABLE = """
page: kdia
title: A table
preset: demo
searches: [{table: small-search, axis: method, otherwise: FedAvg}]
axes:
  data: {IID: data.partition=iid}
  method:
    FedAvg: algorithm=fedavg
    FedProx: algorithm=fedprox
    Ditto: algorithm=ditto
rows: [method]
columns: [data]
against: FedAvg
seeds: [1]
metric: personal_accuracy_mean
show: [overview]
"""

SCORES = {
    ("low", "FedAvg"): (0.5, 0.9),
    ("high", "FedAvg"): (0.6, 0.1),
    ("low", "FedProx, mu 0.1"): (0.7, 0.2),
    ("high", "FedProx, mu 0.1"): (0.4, 0.9),
    ("low", "FedProx, mu 1"): (0.7, 0.9),
    ("high", "FedProx, mu 1"): (float("nan"), 0.9),
}
"""{cell: accuracy on the validation set and on the test set}: the two choose other runs."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Table, Table]:
    """The search and the table, as if both came with the package."""
    for name, text in {"small-search": SEARCH, "small": TABLE}.items():
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(searches, "load_table", lambda name: read_table(tmp_path / f"{name}.yaml"))
    return read_table(tmp_path / "small-search.yaml"), read_table(tmp_path / "small.yaml")


def finish(search: Table, folder: Path, leave_out: tuple[str, ...] = ()) -> None:
    for cell, (validation, test) in SCORES.items():
        if cell != leave_out:
            line = entry(search, cell, 9, test)
            final = {"global_accuracy": test, "global_validation_accuracy": validation}
            Journal(folder, search.name).append(line.model_copy(update={"final": final}))


def test_each_label_takes_the_values_that_the_validation_set_prefers(
    pair: tuple[Table, Table], tmp_path: Path
) -> None:
    """The first of equal candidates; a method that the search lacks takes FedAvg's rate and keeps its own."""
    search, table = pair
    finish(search, tmp_path)
    chosen = choose_values(table, tmp_path)
    assert {label: choice.labels for label, choice in chosen.choices.items()} == {
        "FedAvg": ("FedAvg", "high"),
        "FedProx": ("FedProx, mu 0.1", "low"),
        "Ditto": ("high",),
    }
    specs = {member.run.labels["method"]: member.spec for member in chosen.runs()}
    assert {label: spec.local.lr for label, spec in specs.items()} == {
        "FedAvg": 0.1,
        "FedProx": 0.01,
        "Ditto": 0.1,
    }
    assert specs["FedProx"].algorithm.params == {"mu": 0.1}
    assert specs["Ditto"].algorithm.name == "ditto"
    assert {spec.seed for spec in specs.values()} == {1}
    page = render(chosen, {})
    assert "| FedProx | FedProx, mu 0.1, low | 4 | 70.0 |" in page
    assert "| Ditto | high | – (as FedAvg) | – |" in page
    assert "Not run: FedAvg, FedProx, Ditto." in page


def test_a_second_search_chooses_for_the_labels_that_the_first_one_lacks(
    pair: tuple[Table, Table], tmp_path: Path
) -> None:
    """`Ditto, alone` is a label of its own, so it is no candidate of Ditto."""
    search, _ = pair
    finish(search, tmp_path)
    personal = SEARCH.replace("FedProx, mu 0.1", "Ditto, lambda 2").replace("FedProx, mu 1", "Ditto, alone")
    personal = personal.replace("fedprox, mu", "ditto, lambda_prox").replace(
        "lambda_prox: 1.0", "lambda_prox: 0"
    )
    (tmp_path / "small-personal.yaml").write_text(personal, "utf-8")
    second = read_table(tmp_path / "small-personal.yaml")
    both = TABLE.replace(
        "otherwise: FedAvg}]", "otherwise: FedAvg}, {table: small-personal, axis: method, otherwise: FedAvg}]"
    )
    both = both.replace(
        "  method:\n", '  method:\n    Ditto, alone: "algorithm={name: ditto, lambda_prox: 0}"\n'
    )
    (tmp_path / "both.yaml").write_text(both, "utf-8")
    table = read_table(tmp_path / "both.yaml")
    assert not is_searched(table, tmp_path)
    scores = {("low", "Ditto, lambda 2"): 0.8, ("high", "Ditto, alone"): 0.9}
    for cell in second.cells(list(second.axes)):
        line = entry(second, cell, 9, 0.5)
        final = {"global_validation_accuracy": scores.get(cell, 0.3)}
        Journal(tmp_path, second.name).append(line.model_copy(update={"final": final}))
    choices = choose_values(table, tmp_path).choices
    assert {label: (choice.search, choice.labels) for label, choice in choices.items()} == {
        "FedAvg": ("small-search", ("FedAvg", "high")),
        "FedProx": ("small-search", ("FedProx, mu 0.1", "low")),
        "Ditto": ("small-personal", ("Ditto, lambda 2", "low")),
        "Ditto, alone": ("small-personal", ("Ditto, alone", "high")),
    }
    page = render(choose_values(table, tmp_path), {})
    assert "in the runs of `small-personal`, never the test set" in page
    assert "| Ditto | Ditto, lambda 2, low | 2 | 80.0 |" in page


def test_a_search_by_a_loss_takes_the_smallest(
    pair: tuple[Table, Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, table = (tmp_path / f"{name}.yaml" for name in ("small-search", "small"))
    search.write_text(SEARCH.replace("metric: global_validation_accuracy", "metric: global_validation_loss"))
    by_loss = read_table(search)
    for cell, (validation, _) in SCORES.items():
        line = entry(by_loss, cell, 9, 0.5)
        Journal(tmp_path, by_loss.name).append(
            line.model_copy(update={"final": {"global_validation_loss": validation}})
        )
    assert choose_values(read_table(table), tmp_path).choices["FedAvg"].labels == ("FedAvg", "low")


def test_one_value_has_to_do_for_all_partitions_and_seeds(
    pair: tuple[Table, Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are means over `data`, which both tables have, and seeds; a loss of NaN rules a value out."""
    partitions = {"IID": ("data.partition=iid",), "Shards": ("data.partition=shards",)}
    search, table = (
        each.model_copy(update={"axes": {**each.axes, "data": partitions}, "seeds": seeds})
        for each, seeds in zip(pair, [(8, 9), (1,)], strict=True)
    )
    monkeypatch.setattr(searches, "load_searches", lambda table: [search])
    scores = {
        ("high", "FedAvg", "IID"): 0.9,
        ("high", "FedAvg", "Shards"): 0.2,
        ("low", "FedAvg", "IID"): 0.7,
    }
    for cell in search.cells(list(search.axes)):
        for seed in search.seeds:
            diverged = (*cell, seed) == ("low", "FedProx, mu 0.1", "Shards", 9)
            final = {
                "global_validation_accuracy": 0.0 if diverged else scores.get(cell, 0.5),
                "global_validation_loss": float("nan") if diverged else 1.0,
            }
            line = entry(search, cell, seed, 0.5)
            Journal(tmp_path, search.name).append(line.model_copy(update={"final": final}))
    choices = choose_values(table, tmp_path).choices
    assert choices["FedAvg"].labels == ("FedAvg", "low"), "0.6 on the mean, where the other rate has 0.55"
    assert choices["FedAvg"].score == pytest.approx(0.6)
    assert choices["FedProx"].labels == ("FedProx, mu 1", "low"), (
        "the first of three equals that never diverged"
    )
    assert choices["FedProx"].candidates == 4
    assert choices["Ditto"].labels == ("low",)


def test_no_method_takes_a_rate_at_which_fedavg_diverges(pair: tuple[Table, Table], tmp_path: Path) -> None:
    search, table = pair
    for cell in search.cells(list(search.axes)):
        diverged, fast = cell == ("high", "FedAvg"), cell[0] == "high"
        final = {"global_validation_accuracy": float("nan") if diverged else 0.9 if fast else 0.5}
        line = entry(search, cell, 9, 0.5)
        Journal(tmp_path, search.name).append(line.model_copy(update={"final": final}))
    choices = choose_values(table, tmp_path).choices
    assert {label: choice.labels[-1] for label, choice in choices.items()} == dict.fromkeys(choices, "low")


def test_nothing_is_chosen_while_a_run_of_the_search_is_missing(
    pair: tuple[Table, Table], tmp_path: Path
) -> None:
    search, table = pair
    finish(search, tmp_path, leave_out=("low", "FedAvg"))
    assert not is_searched(table, tmp_path)
    with pytest.raises(SettingsError, match="1 of its 6 runs are missing") as raised:
        choose_values(table, tmp_path)
    assert "fedsim reproduce small-search" in str(raised.value.hint)
    with pytest.raises(ValueError, match="no values yet"):
        run_table(table, Journal(tmp_path, "small"), lambda *each: iter(()), lambda progress: None)
    Journal(tmp_path, "small").append(entry(table, ("IID", "FedAvg"), 1, 0.5))
    assert write_report([table], tmp_path, tmp_path) == [], "another search would have other values"


def test_a_search_by_the_test_set_is_refused(pair: tuple[Table, Table], tmp_path: Path) -> None:
    file = tmp_path / "small-search.yaml"
    file.write_text(SEARCH.replace("global_validation_accuracy", "global_accuracy"), "utf-8")
    with pytest.raises(SettingsError, match="compares runs by global_accuracy"):
        load_searches(pair[1])


def test_a_search_that_does_not_fit_is_refused(pair: tuple[Table, Table], tmp_path: Path) -> None:
    file = tmp_path / "small-search.yaml"
    file.write_text(SEARCH.replace("    FedAvg: algorithm=fedavg\n", ""), "utf-8")
    with pytest.raises(SettingsError, match="has no 'method: FedAvg'"):
        load_searches(pair[1])


@pytest.mark.parametrize("name", [name for name in list_tables() if load_table(name).searches])
def test_a_search_has_seeds_and_labels_of_its_own_table(name: str) -> None:
    """Of the package: other seeds than the table's, and every label of a search is somebody's candidate."""
    table = load_table(name)
    for search in load_searches(table):
        assert not set(search.seeds) & set(table.seeds)
        axis = table.searches[0].axis
        for label in search.axes[axis]:
            assert [own for own in table.axes[axis] if label == own or label.startswith(f"{own}, ")], label
