"""The round engine against a plain multi-process loop, side by side in one run.

    python benchmarks/engine.py A B C          # workloads; prints one JSON line for each

A, B: the same local SGD through both, in interleaved pairs; the figure is the median ratio of client
updates per second. C: rounds without any training, so the engine's overhead alone, in milliseconds per
round.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from actors.resources import Placement
from benchmarks.machine import here, start_ray
from benchmarks.workloads import WORKLOADS, PlainLoop, Workload
from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import ClientTask, ClientUpdate, Context
from fedsim.engine.simulation import simulate


@dataclass(frozen=True, kw_only=True)
class NoTraining(FedAvg):
    """Clients send back what they received: what is left is the engine."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The model as it came."""
        return ClientUpdate({"params": task.broadcast["params"]}, {}, {})


class Engine:
    """The engine on P actors, warmed up."""

    def __init__(self, workload: Workload, actors: int) -> None:
        self.algorithm = NoTraining() if workload.name == "C" else FedAvg()
        self.population: Population = workload.population()
        self.pool = RayPool(self.algorithm, self.population, ActorGroup(Placement(actors, 1, 0), inline=True))
        self.seconds(2)

    def seconds(self, rounds: int) -> float:
        """Seconds of this many rounds, without the evaluation after the last."""
        results = simulate(self.algorithm, self.population, self.pool, rounds=rounds, evaluate_every=rounds)
        seconds = [result.seconds for result in results]
        return sum(phases["total"] for phases in seconds) - seconds[-1]["evaluate"]

    def close(self) -> None:
        """End the actors."""
        self.pool.close()


def compare(workload: Workload, processes: int, pairs: int) -> dict[str, Any]:
    """Interleaved pairs of the engine and the plain loop."""
    engine, plain = Engine(workload, processes), PlainLoop(workload, processes)
    found = []
    for _ in range(pairs):
        fast = workload.rounds * workload.cohort / engine.seconds(workload.rounds)
        found.append((fast, plain.updates_per_second()))
        print(f"  engine {found[-1][0]:.1f}, plain {found[-1][1]:.1f} updates/s", file=sys.stderr)
    engine.close()
    plain.close()
    return {
        "workload": workload.name,
        "ratio": round(median(a / b for a, b in found), 3),
        "engine_updates_per_s": round(median(a for a, _ in found), 1),
        "plain_updates_per_s": round(median(b for _, b in found), 1),
        "pairs": pairs,
    }


def overhead(workload: Workload, actors: int, pairs: int) -> dict[str, Any]:
    """Milliseconds of a round in which nobody trains."""
    engine = Engine(workload, actors)
    found = [1e3 * engine.seconds(workload.rounds) / workload.rounds for _ in range(pairs)]
    engine.close()
    return {"workload": workload.name, "milliseconds_per_round": round(median(found), 2), "pairs": pairs}


def main() -> None:
    """Run the workloads named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=["A", "B", "C"], choices=sorted(WORKLOADS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    start_ray(options.processes)
    for name in options.workloads:
        run = overhead if name == "C" else compare
        print(json.dumps({**run(WORKLOADS[name], options.processes, options.pairs), **here()}), flush=True)


if __name__ == "__main__":
    main()
