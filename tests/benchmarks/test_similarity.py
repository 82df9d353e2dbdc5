"""KDIA's Fig. 7: both generators, class by class, against an expert whose accuracy is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.places import JOURNALS, PAGES
from benchmarks.similarity.__main__ import main
from benchmarks.similarity.runs import (
    WAYS,
    FinishedRun,
    list_pairs,
    measure_generators,
    read_runs,
    train_expert,
)
from benchmarks.similarity.section import render_section
from fedsim.algorithms import KDIA
from fedsim.base import tree
from fedsim.errors import FedsimError
from jobs.json_lines import write_line
from tests.fedsim.federations import federation
from tests.fedsim.methods import QUICK

ITEMS = (
    "algorithm={name: kdia, generator_epochs: 1, generator_batches: 2, generator_noise: 8}",
    "rounds=1",
    "data.limit=200",
    "clients.total=10",
    "local.epochs=1",
)


def test_both_ways_of_drawing_labels_are_held_against_one_expert() -> None:
    population = federation(rounds=2)
    expert, accuracy = train_expert(population, 3)
    test = population.dataset.test
    said = population.nets[0](expert, tree.wrap_array(test.x)).argmax(-1)
    assert accuracy == pytest.approx(float((said.numpy() == test.y).mean()))
    drawn = [measure_generators(KDIA(labels=labels, **QUICK["kdia"]), population, expert) for labels in WAYS]
    assert drawn[0]["trained"]["same"] != drawn[1]["trained"]["same"]
    assert drawn[0]["untrained"] == drawn[1]["untrained"]
    for each in drawn:
        assert list(each["trained"]["classes"]) == [f"class {c}" for c in range(4)]


def test_every_run_has_the_papers_strength_for_its_beta() -> None:
    specs = {
        (pair.seed, pair.beta): pair.make_spec("data") for pair in list_pairs("kdia-cifar10-small", [], 20)
    }
    assert list(specs)[:4] == [(2506, 0.1), (2506, 0.5), (2506, 5.0), (2507, 0.1)]
    assert len(specs) == 9
    for (seed, beta), spec in specs.items():
        assert (spec.seed, spec.data.partition.params["beta"]) == (seed, beta)
        assert spec.algorithm.params["lambda_gen"] == (1.0 if beta == 0.5 else 0.01)
        assert spec.algorithm.params["labels"] == "data"


@pytest.mark.slow
def test_what_is_finished_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.similarity.runs.SEEDS", (1,))
    monkeypatch.setattr("benchmarks.similarity.runs.BETAS", {0.5: 1.0})
    monkeypatch.setattr("benchmarks.similarity.section.BETAS", {0.5: 1.0})
    page, file = tmp_path / "page.md", tmp_path / "kdia-similarity.jsonl"
    options = ["demo", "--expert", "1", "--results", str(tmp_path), "--page", str(page)]
    options += [part for item in ITEMS for part in ("--set", item)]
    assert main([*options, "--render"]) == 2
    assert (
        "2 of 2 runs are missing: Dir(0.5), seed 1, pass; Dir(0.5), seed 1, data" in capsys.readouterr().err
    )
    assert not page.exists()
    assert main([*options, "--processes", "1"]) == 0
    made = list(read_runs(file).values())
    assert [run.labels for run in made] == ["pass", "data"]
    assert (made[0].central, made[0].untrained) == (made[1].central, made[1].untrained)
    monkeypatch.setattr("benchmarks.similarity.runs.open_processes", None)  # nothing more is to be started
    assert main(options) == 0
    assert main([*options, "--render"]) == 0
    assert "<!-- table kdia-similarity -->\n## Similarity of generated and real" in page.read_text("utf-8")
    more = [*options[:1], "--expert", "2", *options[3:]]
    assert main([*more, "--render"]) == 2, "another expert is another measurement"


def run_of(pair: Any, way: Any, same: float, accuracy: float) -> FinishedRun:
    features = {"same": same, "other": 0.5, "classes": {"a": same, "b": 0.8, "c": 0.1}}
    return FinishedRun.model_validate(
        {
            "key": pair.make_key(way)[0],
            "epochs": pair.epochs,
            "central": 0.6,
            "beta": pair.beta,
            "seed": pair.seed,
            "labels": way,
            "metrics": {"global_accuracy": accuracy},
            "trained": features,
            "untrained": {"same": 0.3, "other": 0.3, "classes": {"a": 0.3}},
            "seconds": 1.0,
            "code": "",
        }
    )


def test_the_section_has_mean_and_deviation_over_the_seeds(tmp_path: Path) -> None:
    """Similarities 0.7, 0.8, 0.9 by seed: one class above 0.75, then two, two; `data` has 0.1 less."""
    wanted, file = list_pairs("kdia-cifar10-small", [], 20), tmp_path / "runs.jsonl"
    for number, pair in enumerate(wanted):
        same = 0.7 + 0.1 * (number // 3)
        for way, less in (("pass", 0.0), ("data", 0.1)):
            write_line(file, run_of(pair, way, round(same - less, 3), same - less).model_dump_json())
    text = render_section(wanted, read_runs(file))
    figures = ["0.800 ± 0.100", "0.700 ± 0.100", "0.300 ± 0.000"]
    figures += ["1.7 ± 0.6", "1.3 ± 0.6", "0.0 ± 0.0", "0.500 ± 0.000", "0.500 ± 0.000", "0.300 ± 0.000"]
    figures += ["80.00 ± 10.00", "70.00 ± 10.00", "60.00 ± 0.00"]
    for beta in ("0.1", "0.5", "5"):
        assert f"| Dir({beta}) | {' | '.join(figures)} |" in text
    assert "trained for 20 epochs" in text
    assert "`python -m benchmarks.similarity kdia-cifar10-small --expert 20`" in text
    whole = read_runs(file)
    part = {key: run for key, run in whole.items() if (run.seed, run.beta, run.labels) != (2507, 5.0, "data")}
    with pytest.raises(FedsimError, match=r"1 of 18 runs are missing: Dir\(5\), seed 2507, data"):
        render_section(wanted, part)


def test_the_page_has_the_section_as_it_is_computed() -> None:
    text = render_section(
        list_pairs("kdia-cifar10-small", [], 20), read_runs(JOURNALS / "kdia-similarity.jsonl")
    )
    block = f"<!-- table kdia-similarity -->\n{text}\n<!-- end of table kdia-similarity -->"
    assert block in (PAGES / "kdia.md").read_text("utf-8")


def test_both_ways_need_an_expert(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--expert", "0"])
    assert "0 is no number of epochs" in capsys.readouterr().err
