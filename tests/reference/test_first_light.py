"""The first presets as they are: they learn what they should, and the number of workers changes nothing.

`demo` with the seeds 0 to 4, measured: 0.919, 0.914, 0.930, 0.925, 0.936. `fmnist-fedavg` on real actors,
measured: 0.789 after 30 rounds. All of it takes about a minute of two cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.run.execute import execute
from jobs.run.run_result import RunResult
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec
from tests.reference.runs import NEEDS_FASHION_MNIST, last_metrics

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("seed", range(5))
def test_the_demo_learns_digits(seed: int, tmp_path: Path) -> None:
    experiment = resolve_spec(load_spec("demo", [f"seed={seed}"]), Settings(tmp_path))
    assert last_metrics(experiment)["global_accuracy"] > 0.85


@pytest.mark.weekly
@NEEDS_FASHION_MNIST
def test_fashion_mnist_is_learned_by_one_worker_as_by_two(ray_cluster: None, tmp_path: Path) -> None:
    def run(workers: int) -> RunResult:
        return execute(load_spec("fmnist-fedavg", [f"resources.workers={workers}"]), Settings(tmp_path))

    one, two = run(1), run(2)
    print(f"    fmnist-fedavg: {one.final['global_accuracy']:.3f}")
    assert [result.records[-1].engine.actors for result in (one, two)] == [1, 2]
    assert one.final["global_accuracy"] > 0.7
    assert [record.digest for record in one.records] == [record.digest for record in two.records]
    assert len(one.records) == 30
