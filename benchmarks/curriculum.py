"""What the data curriculum's scoring adds to a round.

    python benchmarks/curriculum.py             # prints one JSON line for each score

Workload A of `benchmarks/engine.py`: 50 clients of 50 images a round, 1 epoch of batch 10, LeNet-5; in one
process, one client after another, so that the round is nearly all training and the share is at its largest.
Rounds with and without the curriculum take turns. The figure is the ratio of the least processor time of
each less one, because other work on the machine can only add to a round; the median of the ratios of pairs
stands beside it. A random order has the same batches without any scoring, and shows what the rest costs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from benchmarks.workloads import WORKLOADS
from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.curriculum import DataCurriculum
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate

VARIANTS: dict[str, dict[str, Any]] = {
    "random": {"order": "random"},
    "global_loss": {"score": "global_loss"},
    "local_loss": {"score": "local_loss"},
    "both_loss": {"score": "both_loss"},
}


def rounds(algorithm: Algorithm, population: Population) -> Iterator[float]:
    """Processor seconds of one round after another."""
    pool = SerialPool(algorithm, population)
    results = simulate(algorithm, population, pool, rounds=10_000, evaluate_every=10_000)
    while True:
        began = process_time()
        next(results)
        yield process_time() - began


def added(population: Population, curriculum: DataCurriculum, pairs: int) -> dict[str, Any]:
    """The share that a curriculum adds, over interleaved pairs of rounds."""
    plain, ordered = rounds(FedAvg(), population), rounds(curriculum, population)
    for warm_up in (plain, ordered):
        next(warm_up)
    found = [(next(plain), next(ordered)) for _ in range(pairs)]
    return {
        "added": round(min(b for _, b in found) / min(a for a, _ in found) - 1, 3),
        "added_median": round(median(b / a for a, b in found) - 1, 3),
        "plain_ms_per_round": round(1e3 * min(a for a, _ in found), 1),
        "curriculum_ms_per_round": round(1e3 * min(b for _, b in found), 1),
        "pairs": pairs,
    }


def main() -> None:
    """Measure every score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    population = WORKLOADS["A"].population()
    for name, how in VARIANTS.items():
        figures = added(population, DataCurriculum(base=FedAvg(), **how), options.pairs)
        print(json.dumps({"workload": "A", "curriculum": name, **figures, **here()}), flush=True)


if __name__ == "__main__":
    main()
