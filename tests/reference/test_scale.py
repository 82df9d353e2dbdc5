"""A million clients, and client memories that outgrow the object store; each in a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def answer(home: Path, *arguments: str) -> Any:
    """What a fresh Python process prints last, as data."""
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"FEDSIM_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.parametrize("size", [pytest.param(250_000, marks=pytest.mark.weekly), 80_000])
def test_client_states_spill_and_the_coordinator_stays_small(tmp_path: Path, size: int) -> None:
    """10,000 clients, all visited twice, with an object store of 400 MB.

    Memories of 80 kB are those that Ray by itself would keep in the coordinator.
    """
    found = answer(tmp_path, "-m", "tests.reference.spilling", "10000", str(size), "400000000")
    assert found["rounds"] == 200
    assert found["wrong"] == 0
    # All memories together, less what the store holds; Ray writes them in larger files.
    assert found["spilled_mb"] >= 0.9 * (10_000 * size / 1e6 - 400)
    assert found["left_mb"] == 0
    assert found["coordinator_mb"] < 700
    assert found["driver_mb"] < 700


def test_a_million_clients_take_no_more_memory_than_a_thousand(tmp_path: Path) -> None:
    found = answer(tmp_path, "benchmarks/scale.py", "--rounds", "5", "--turns", "2")
    small, large = found["coordinator_mb"]
    assert large - small < 50


@pytest.mark.weekly
def test_kdias_teacher_of_all_clients_costs_no_more_with_a_hundred_times_as_many(tmp_path: Path) -> None:
    """Processor seconds, since seconds of so few rounds are the machine's as much as the method's."""
    options = "--algorithm kdia --clients 100 10000 --cohort 10 --rounds 5 --turns 4"
    found = answer(tmp_path, "benchmarks/scale.py", *options.split())
    assert found["processor_ratio"] < 1.2
    small, large = found["coordinator_mb"]
    assert large < 1.2 * small


SPEC = """
clients: {total: 1000000, fraction: 0.00005}
data:
  dataset: {name: synthetic, examples: EXAMPLES, dims: 8}
  partition: PARTITION
local: {epochs: 1}
rounds: 2
algorithm: fedavg
"""


@pytest.mark.parametrize(
    ("examples", "partition", "workers"),
    [
        (100_000, "{kind: sampled, size: 50, beta: 0.3}", [1, 2]),
        pytest.param(4_000_000, "dirichlet", [2], marks=pytest.mark.weekly),
    ],
    ids=["sampled", "dirichlet"],
)
def test_a_million_clients_run_from_a_spec(
    tmp_path: Path, examples: int, partition: str, workers: list[int]
) -> None:
    spec = tmp_path / "million.yaml"
    spec.write_text(SPEC.replace("EXAMPLES", str(examples)).replace("PARTITION", partition))
    command = ("-m", "api.cli.main", "run", str(spec), "--format", "jsonl", "--set")
    runs = [answer(tmp_path, *command, f"resources.workers={number}") for number in workers]
    assert {run["cohort"] for run in runs} == {50}
    assert len({run["digest"] for run in runs}) == 1
