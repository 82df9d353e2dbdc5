"""How like real features a run's generated ones are, beside an untrained generator's (paper 003, Fig. 7).

    python benchmarks/similarity.py kdia-fmnist-small --set rounds=10      # prints one JSON line

Runs the preset with KDIA in this process and measures after the last round (`fedsim.similarity`): the real
features are the global model's own on the test set, or with `--expert E` those of a model of the same
architecture that was trained for E epochs on everybody's data, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsim import rng
from fedsim.algorithms import KDIA, FedAvg
from fedsim.data.partition import Partition
from fedsim.generator_training import untrained
from fedsim.net import Params
from fedsim.pools import SerialPool
from fedsim.population import Population
from fedsim.similarity import similarity
from fedsim.simulation import simulate
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import load_spec


def central(population: Population, epochs: int) -> Params:
    """A model trained on everybody's data: a federation of one client."""
    count = len(population.dataset.train)
    everything = Partition(np.arange(count), np.array([0, count]))
    local = replace(population.local, epochs=1, steps=None)
    alone = replace(population, partition=everything, cohort_size=1, rounds=epochs, local=local)
    *_, last = simulate(FedAvg(), alone, SerialPool(FedAvg(), alone), evaluate_every=epochs)
    params: Params = last.state.params
    return params


def measure(preset: str, sets: list[str], expert: int) -> dict[str, Any]:
    """Run, and compare the features of the last generator and of an untrained one with real ones."""
    experiment = resolve(load_spec(preset, sets), Settings.from_env())
    method = experiment.algorithm
    if not isinstance(method, KDIA) or not method.lambda_gen:
        raise SystemExit(f"{preset} has no generator: --set algorithm=kdia")
    population = experiment.population()
    *_, last = simulate(method, population, SerialPool(method, population), evaluate_every=experiment.rounds)
    ctx = population.context(experiment.rounds)
    generator = method.generator(ctx)
    real = central(population, expert) if expert else last.state.params
    stream = rng.stream(experiment.seed, "similarity")
    found = {
        name: similarity(population, generator, params, real, stream)
        for name, params in (
            ("trained", last.state.generator["params"]),
            ("untrained", untrained(generator, experiment.seed)["params"]),
        )
    }
    return {"preset": preset, "rounds": experiment.rounds, "metrics": dict(last.metrics), **found}


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", nargs="?", default="kdia-fmnist-small")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--expert", type=int, default=0, help="epochs of the model whose features are real")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(options.preset, options.set, options.expert)), flush=True)


if __name__ == "__main__":
    main()
