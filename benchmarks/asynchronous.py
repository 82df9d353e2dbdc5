"""What an update costs in asynchronous rounds beside its training, and the memory, by the number of clients.

    python benchmarks/asynchronous.py                       # prints one JSON line for each number of clients
    python benchmarks/asynchronous.py --clients 100000 --in-flight 1000 --buffer 10 --updates 5000 --times 3

Nobody trains: the pool answers at once with the model that the clients received. What is left is the event
loop, the messages, the mean of the updates, the server step and its digest. Milliseconds are those of the
processor, which other programs hardly change; those of the clock stand beside them, with the load of the
machine. torch has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsim.algorithms import FedAvg
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import FedBuff
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Phones
from fedsim.core import Context, LocalTraining, ReducedUpdates, RunSettings, Traffic
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate

ENGINE = {"pool": "none", "width": 1, "actors": 0, "restarts": 0}


class IdlePool(SerialPool):
    """Gives back the model that the clients received, in place of their training."""

    def begin_training(self, ctx: Context, state: Any, cohort: Sequence[int]) -> Callable[[], ReducedUpdates]:
        """Return a function that returns the updates."""
        ones = (1,) * len(cohort)
        mean = tree.map(lambda value: value.double(), state.params)
        sizes = ((0, 0),) * len(cohort)
        return lambda: ReducedUpdates(
            {"params": mean}, tuple(cohort), ones, ones, {}, Traffic(), ENGINE, client_bytes=sizes
        )


def make_population(clients: int, in_flight: int, rounds: int) -> Population:
    """Make a federation of clients with 20 of the same 1,000 examples."""
    local = LocalTraining(epochs=1, batch_size=10, lr=0.05)
    return Experiment(
        algorithm=FedAvg(),
        settings=RunSettings(seed=0, rounds=rounds, cohort_size=in_flight, local=local),
        num_clients=clients,
        dataset=("synthetic", {"examples": 1000, "test_examples": 100, "seed": 0}),
        partition=("sampled", {"size": 20, "beta": 0.3}),
        models=(("logistic", {}),),
    ).load_population()


def measure(clients: int, in_flight: int, buffer: int, updates: int, times: int) -> dict[str, Any]:
    """Measure the milliseconds of an update in each of some runs, and the memory of Python in one more."""
    rounds = updates // buffer
    population, algorithm = make_population(clients, in_flight, rounds), FedAvg()
    devices = Devices(fleet=Phones(), policy=FedBuff(buffer=buffer), dropout=0.05)

    def run() -> None:
        pool = IdlePool(algorithm, population)
        for _ in simulate(algorithm, population, pool, devices=devices, evaluate_every=rounds):
            pass

    def take_ms(clock: Callable[[], float], began: float) -> float:
        return round(1000 * (clock() - began) / (rounds * buffer), 3)

    processor, elapsed = list[float](), list[float]()
    for _ in range(times):
        began, began_at = process_time(), perf_counter()
        run()
        processor.append(take_ms(process_time, began))
        elapsed.append(take_ms(perf_counter, began_at))
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "clients": clients,
        "processor_ms_per_update": median(processor),
        "range": [min(processor), max(processor)],
        "elapsed_ms_per_update": median(elapsed),
        "load": round(os.getloadavg()[0], 1),
        "peak_mb": round(peak / 1e6, 1),
    }


def main() -> None:
    """Print one line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=10)
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    measure(1000, 10, 10, 20, 1)  # the first run pays for imports and caches
    for clients in asked.clients:
        found = measure(clients, asked.in_flight, asked.buffer, asked.updates, asked.times)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
