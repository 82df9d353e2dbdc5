"""The plan of a sweep: the queue played through, and cells measured in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.plan.plan import Plan
from jobs.plan.sweep_plan import PlannedCell, pack_runs, plan_sweep
from jobs.settings import Settings
from jobs.spec.sections.run_fields import JobSize
from jobs.spec.sweep import is_sweep_file, read_sweep

SWEEP: dict[str, Any] = {
    "base": "demo",
    "set": {"rounds": 2, "model": "logistic"},
    "axes": {"local.lr": [0.05, 0.1]},
    "seeds": [1, 2, 3],
}


def run(seconds: float, cpus: float = 1, gpus: float = 0) -> PlannedCell:
    return PlannedCell(labels={}, runs=1, seconds=seconds, cpus=cpus, gpus=gpus)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], (0, 0)),
        ([run(3)] * 4, (6, 2)),
        ([run(3), run(1), run(1), run(1)], (3, 2)),
        # The second one waits for both CPUs, and the third keeps its place behind it.
        ([run(3), run(1, cpus=2), run(1)], (5, 1)),
        ([run(2, gpus=0.5)] * 2, (2, 2)),
        ([run(2, gpus=1)] * 2, (4, 1)),
        ([run(1, cpus=8)] * 2, (2, 1)),
    ],
)
def test_runs_start_in_order_as_soon_as_they_fit(
    runs: list[PlannedCell], expected: tuple[float, int]
) -> None:
    assert pack_runs(runs, JobSize(cpus=2, gpus=1)) == expected


def test_a_sweep_of_short_runs_is_measured_in_this_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.plan.sweep_plan.plan", None)  # on Ray
    found = plan_sweep(read_sweep(SWEEP), replace(settings, ray_num_cpus=2, ray_num_gpus=0), seconds=1e-6)
    assert (found.runs, found.at_once) == (6, 2)
    assert [(cell.labels, cell.runs, cell.cpus) for cell in found.cells] == [
        ({"local.lr": "0.05"}, 3, 1),
        ({"local.lr": "0.1"}, 3, 1),
    ]
    total = sum(cell.runs * cell.seconds for cell in found.cells)
    assert total / 2 <= found.seconds <= total


def test_a_run_of_small_workers_takes_a_whole_cpu_as_in_the_queue(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten = {"startup": 0, "round": {"total": 5}, "overhead": 0, "evaluation": 0, "total": 10}
    made = Plan.model_validate(
        {
            "fits": True,
            "rounds": 2,
            "evaluations": 1,
            "clients": {"total": 10, "per_round": 2, "per_worker": 2},
            "workers": 1,
            "nodes": [{"name": "here", "cpus": 2, "gpus": 0, "fit": 8}],
            "seconds": ten,
        }
    )
    monkeypatch.setattr("jobs.plan.sweep_plan.plan", lambda *_, **__: made)
    small = {"resources.workers": 1, "resources.cpus_per_worker": 0.25}
    sweep = read_sweep({**SWEEP, "set": small, "seeds": [1, 2, 3, 4]})
    found = plan_sweep(sweep, replace(settings, ray_address="auto"))
    assert (found.seconds, found.at_once) == (40.0, 2)


def test_a_file_with_a_base_and_seeds_is_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("base: demo\nseeds: [1]\n")
    (tmp_path / "spec.yaml").write_text("algorithm: fedavg\n")
    (tmp_path / "broken.yaml").write_text("axes: [")
    found = {
        name: is_sweep_file(str(tmp_path / f"{name}.yaml")) for name in ("sweep", "spec", "broken", "no")
    }
    assert found == {"sweep": True, "spec": False, "broken": False, "no": False}
    assert not is_sweep_file("demo")
    assert not is_sweep_file("-")
