"""How like real features a run's generated ones are, class by class (paper 003, Fig. 7).

    python benchmarks/similarity.py kdia-fmnist-small --set rounds=10 --expert 20      # prints one JSON line

Runs the preset with KDIA in this process twice, with labels drawn for a whole pass as the paper has them and
drawn for each batch as before it, and measures after the last round (`fedsim.similarity`) the generator of
each beside an untrained one. The real features are those of a model of the same architecture that was trained
for E epochs on everybody's data, as in the paper (there to an accuracy of 0.81; here it is in the answer);
without `--expert E` they are the run's own global model's.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsim import rng
from fedsim.algorithms import KDIA, FedAvg
from fedsim.data.partition import Partition
from fedsim.generator_training import Drawn, untrained
from fedsim.net import Params
from fedsim.pools import SerialPool
from fedsim.population import Population
from fedsim.similarity import similarity
from fedsim.simulation import simulate
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import load_spec


def central(population: Population, epochs: int) -> tuple[Params, float]:
    """A model trained on everybody's data, a federation of one client; and its accuracy on the test set."""
    count = len(population.dataset.train)
    everything = Partition(np.arange(count), np.array([0, count]))
    local = replace(population.local, epochs=1, steps=None)
    alone = replace(population, partition=everything, cohort_size=1, rounds=epochs, local=local)
    *_, last = simulate(FedAvg(), alone, SerialPool(FedAvg(), alone), evaluate_every=epochs)
    params: Params = last.state.params
    return params, float(last.metrics["global_accuracy"])


def measured(method: KDIA, population: Population, expert: Params | None) -> dict[str, Any]:
    """Run, and compare the features of the last generator and of an untrained one with real ones."""
    rounds, seed = population.rounds, population.seed
    *_, last = simulate(method, population, SerialPool(method, population), evaluate_every=rounds)
    generator, real = method.generator(population.context(rounds)), expert or last.state.params
    made = {"trained": last.state.generator, "untrained": untrained(generator, seed)}
    return {
        "metrics": dict(last.metrics),
        **{
            name: similarity(population, generator, each["params"], real, rng.stream(seed, "similarity"))
            for name, each in made.items()
        },
    }


def measure(preset: str, sets: list[str], epochs: int) -> dict[str, Any]:
    """Both ways of drawing labels, and the accuracy of the expert that both are held against."""
    experiment = resolve(load_spec(preset, sets), Settings.from_env())
    method = experiment.algorithm
    if not isinstance(method, KDIA) or not method.lambda_gen:
        raise SystemExit(f"{preset} has no generator: --set algorithm=kdia")
    population = experiment.population()
    expert, accuracy = central(population, epochs) if epochs else (None, None)
    said: dict[str, Any] = {"preset": preset, "sets": sets, "rounds": experiment.rounds, "central": accuracy}
    for labels in get_args(Drawn):
        said[labels] = measured(replace(method, labels=labels), population, expert)
    return said


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
