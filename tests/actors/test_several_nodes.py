"""Several nodes in one run: actors spread, GPU fractions counted per node, the bits those of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec
from tests.actors.several_nodes import PRESET, SMALL


@pytest.mark.weekly
def test_the_preset_of_many_clients_on_several_nodes(tmp_path: Path) -> None:
    # One process can be in one Ray only, and the session has one already.
    finished = subprocess.run(
        [sys.executable, "-m", "tests.actors.several_nodes"],
        env=os.environ | {"FEDSIM_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])

    experiment = resolve_spec(load_spec(PRESET, SMALL), Settings(home=tmp_path))
    population, algorithm = experiment.load_population(), experiment.algorithm
    assert (population.partition.num_clients, population.settings.cohort_size) == (10_000, 50)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    assert found["digests"] == [result.digest for result in expected]

    # Three actors of 0.4 GPU on both workers, none on the head.
    assert found["actors"] == [3, 3]
    assert {gpus for _, gpus in found["placed"]} == {0.4}
    shares = Counter(node for node, _ in found["placed"])
    assert set(shares) == set(found["nodes"])
    assert sorted(shares.values()) == [1, 2]

    # 2 on the worker with one GPU and 4 on that with two: six, though 3 GPUs / 0.4 is seven and a half.
    assert "7 workers x 1 CPU and 0.4 GPU asked, 6 fit" in found["refused"]
    assert "4 CPU and 1 GPU: 2 fit" in found["refused"]
    assert "4 CPU and 2 GPU: 4 fit" in found["refused"]
