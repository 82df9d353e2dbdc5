"""`fedsim sweep --on pool | ray`: a grid without a service, with a folder for each run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.file_locks import lock_folder
from jobs.run.execute import execute
from jobs.settings import Settings
from jobs.spec.sweep import members, read_sweep
from tests.api.service import Fedsim

FILE = """
base: demo
set: {rounds: 2, data.limit: 300, clients.total: 10, checkpoint.every: 1}
axes:
  local.lr: [0.05, 0.1]
seeds: [1, 2]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "rates.yaml"
    file.write_text(FILE, "utf-8")
    return file


def digests(folder: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("place", ["pool", "ray"])
def test_each_run_is_that_of_the_run_command_and_is_made_once(
    fedsim: Fedsim, file: Path, tmp_path: Path, place: str
) -> None:
    words = ("sweep", str(file), "--on", place, "--out", str(tmp_path / "out"), "--format", "json")
    done = fedsim(*words)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["states"] == {"SUCCEEDED": 4}
    assert [(cell["labels"], cell["expected"]) for cell in said["cells"]] == [
        ({"local.lr": "0.05"}, 2),
        ({"local.lr": "0.1"}, 2),
    ]
    folders = {run["labels"]["local.lr"] + f" {run['seed']}": Path(run["job"]) for run in said["runs"]}
    member = members(read_sweep(file))[3]
    expected = execute(member.spec, Settings.from_env()).records
    assert digests(folders["0.1 2"]) == [record.digest for record in expected]
    assert said["runs"][3]["value"] == expected[-1].metrics["global_accuracy"]
    times = {name: (path / "rounds.jsonl").stat().st_mtime_ns for name, path in folders.items()}
    # Whoever stops it in between continues: an unfinished run goes on from its checkpoint.
    (folders["0.1 2"] / "result.json").unlink()
    again = fedsim(*words)
    assert json.loads(again.out) == said
    assert digests(folders["0.1 2"]) == [record.digest for record in expected]
    changed = {n for n, path in folders.items() if (path / "rounds.jsonl").stat().st_mtime_ns != times[n]}
    assert changed == {"0.1 2"}


def test_a_broken_run_ends_no_other_and_is_named(fedsim: Fedsim, file: Path, tmp_path: Path) -> None:
    broken = FILE.replace(
        "[0.05, 0.1]", "{one: {local.lr: 0.05}, none: {data.dataset: {name: npz, path: no.npz}}}"
    )
    file.write_text(broken.replace("[1, 2]", "[1]"), "utf-8")
    done = fedsim("sweep", str(file), "--on", "pool", "--out", str(tmp_path / "out"))
    assert done.code == 1
    assert "none, seed 1 failed: " in done.err
    assert "1 of 1" in done.out


def test_the_result_is_that_of_the_round_which_the_stop_rule_chose(
    fedsim: Fedsim, file: Path, tmp_path: Path
) -> None:
    stopped = FILE.replace(
        "rounds: 2", "rounds: 9, stop: {metric: global_accuracy, patience: 1}, local.lr: 1.0"
    )
    file.write_text(stopped.replace("  local.lr: [0.05, 0.1]", "  local.batch_size: [10]"), "utf-8")
    done = fedsim("sweep", str(file), "--on", "pool", "--out", str(tmp_path / "out"), "--format", "json")
    results = [execute(member.spec, Settings.from_env()) for member in members(read_sweep(file))]
    assert [run["value"] for run in json.loads(done.out)["runs"]] == [
        result.final["global_accuracy"] for result in results
    ]
    assert any(result.final != result.records[-1].metrics for result in results)


@pytest.mark.parametrize(
    "words",
    [
        "pool --no-wait",
        "pool --resume",
        "pool --url http://127.0.0.1:9",
        "ray --processes 2",
        "service --processes 2",
        "service --out swept",
    ],
)
def test_options_without_effect_are_refused(fedsim: Fedsim, file: Path, words: str) -> None:
    done = fedsim("sweep", str(file), "--on", *words.split())
    assert done.code == 2
    place, option = words.split()[:2]
    assert f"{option} with --on {place}" in done.err


def test_a_pool_refuses_gpus_and_a_folder_that_another_sweep_has(
    fedsim: Fedsim, file: Path, tmp_path: Path
) -> None:
    words = ("sweep", str(file), "--on", "pool", "--out", str(tmp_path))
    done = fedsim(*words, "--set", "resources.gpus_per_worker=0.5")
    assert done.code == 2
    assert "--on pool trains on CPUs, and a run asks for a GPU" in done.err
    (tmp_path / "rates").mkdir()
    with lock_folder(tmp_path / "rates", "sweep"):
        done = fedsim(*words)
    assert done.code == 2
    assert "another sweep works in" in done.err


def test_groups_of_its_runs_have_the_names_of_its_cells(fedsim: Fedsim, file: Path, tmp_path: Path) -> None:
    axes = FILE.replace("local.lr: [0.05, 0.1]", "algorithm: [fedavg, {name: fedprox, mu: 1}]")
    file.write_text(axes, "utf-8")
    fedsim("sweep", str(file), "--on", "pool", "--out", str(tmp_path / "out"))
    done = fedsim("compare", str(tmp_path / "out" / "rates"), "--against", "fedprox mu=1", "--format", "json")
    assert [group["name"] for group in json.loads(done.out)["groups"]] == ["fedavg", "fedprox mu=1"], done.err
