"""Scoring all clients' own models after fine-tuning: two actors against one, in one run.

    python benchmarks/personal.py               # prints one JSON line

100 clients share Fashion-MNIST out by Dirichlet(0.1), training and test set merged, a quarter of each
client's examples for testing; FedBABU's clients train all of FedAvgCNN for an epoch before they are scored.
Both actor groups stand ready, and they take turns; the figure is the median ratio of their seconds. They have
to find the same numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from actors.resources import Placement
from benchmarks.machine import here, start_ray
from fedsim.algorithms.personalized.fedbabu import FedBABU
from fedsim.base.progress import run_to_end
from fedsim.clients.population import Population
from fedsim.core import LocalTraining, PersonalScores, RunSettings
from fedsim.data import load_dataset, make_federation
from fedsim.engine.initial_state import make_initial_state
from fedsim.models import make_net


def federation(clients: int) -> Population:
    """Who is scored."""
    data = load_dataset("fashion_mnist", roots=[Path.home() / ".fedsim" / "data"])
    shared = make_federation(
        data, "dirichlet", num_clients=clients, seed=0, tests="merged", beta=0.1, min_size=40
    )
    return Population(
        dataset=shared.dataset,
        partition=shared.train,
        tests=shared.tests,
        nets=(make_net("fedavg_cnn", input_shape=data.input_shape, num_classes=data.num_classes),),
        settings=RunSettings(
            seed=1,
            rounds=1,
            cohort_size=max(1, clients // 10),
            local=LocalTraining(epochs=1, batch_size=10, lr=0.005),
        ),
    )


class PersonalEvaluator:
    """So many actors, warmed up."""

    def __init__(self, algorithm: FedBABU, population: Population, actors: int) -> None:
        self.algorithm, self.population = algorithm, population
        self.state: Any = make_initial_state(algorithm, population)
        self.pool = RayPool(algorithm, population, ActorGroup(Placement(actors, 1, 0), inline=True))
        self.scores(range(actors))

    def scores(self, clients: Any = None) -> tuple[PersonalScores, float]:
        """The scores of these clients, by default of all, and the seconds that they took."""
        began, ctx = perf_counter(), self.population.context(0)
        found = run_to_end(self.pool.begin_personal_evaluation(ctx, self.state, clients))
        return found, perf_counter() - began


def compare(clients: int, epochs: int, actors: int, pairs: int) -> dict[str, Any]:
    """Interleaved pairs of many actors and one."""
    algorithm, population = FedBABU(tuning_epochs=epochs), federation(clients)
    one, many = (PersonalEvaluator(algorithm, population, count) for count in (1, actors))
    found = []
    for _ in range(pairs):
        (alone, slow), (together, fast) = one.scores(), many.scores()
        if alone.rows() != together.rows():
            raise RuntimeError("the scores depend on the number of actors")
        found.append((slow, fast))
        print(f"  1 actor {slow:.2f} s, {actors} actors {fast:.2f} s", file=sys.stderr)
    for evaluator in (one, many):
        evaluator.pool.close()
    return {
        "speedup": round(median(slow / fast for slow, fast in found), 3),
        "seconds_one": round(median(slow for slow, _ in found), 2),
        "seconds_many": round(median(fast for _, fast in found), 2),
        "actors": actors,
        "clients": clients,
        "tuning_epochs": epochs,
        "pairs": pairs,
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    start_ray(1 + options.actors)
    figures = compare(options.clients, options.epochs, options.actors, options.pairs)
    print(json.dumps({**figures, **here()}), flush=True)


if __name__ == "__main__":
    main()
