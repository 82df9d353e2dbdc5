"""Clients that train at once against one by one: client updates per second, by model, batch and stack size.

    python benchmarks/stacked.py                                    # lenet5 at batch 10, stacks of 1 to 256
    python benchmarks/stacked.py --models lenet5 resnet18 --batches 10 64 --stack-sizes 1 8 64 --seconds 5
    python benchmarks/stacked.py --choice                           # is the automatic choice the best one?

    python benchmarks/stacked.py --precisions float32 tf32 bf16 --graphs    # on a GPU

Every case is rounds of FedAvg in this process (`StackedPool`; stack size 1 is `SerialPool`) over seeded
noise of the model's usual shape: K clients of `--examples` images, one epoch, K the largest stack size. Cases
of one model and batch are measured in turn, `--repeats` times, and the best of them counts, so that a machine
which is busy for a while does not decide. ResNet-18 has GroupNorm. Evaluation is left out.

It prints a JSON line for each case and a table at the end. `share` is of the device's peak in single
precision, where `--peak TFLOPS` says what that is; `memory` is the device's own count on a GPU, and on a CPU
the most that the process has had so far. `automatic` is the stack size that `resources.stack: auto` takes.

`--choice` compares that stack size with others, one by one among them, at batch 10: rounds of all of them in
turn, there and back, and the seconds of processor time (of a GPU: by the clock) of each by those of the
automatic one of the same turn. The line of a model has the median for every stack size, and in `choice` the
least: how fast the automatic stack size is, measured by the best. It ends with 1 if that is below 0.95 for a
model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, get_args

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from benchmarks.workloads import run_plain_sgd
from fedsim.algorithms import FedAvg
from fedsim.base import rng
from fedsim.base.memory_usage import peak_private_bytes
from fedsim.base.precision import Precision, lower_precision, use_precision
from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.data.dataset import Dataset, Examples, Normalise
from fedsim.data.partition import Partition
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.models import make_net
from fedsim.stacking.graph_replay import CudaRecording
from fedsim.stacking.stack_size import choose_stack_size
from fedsim.training.effort import CostMeter

MODELS: Mapping[str, tuple[tuple[int, int, int], Mapping[str, Any]]] = {
    "lenet5": ((1, 28, 28), {}),
    "fedavg_cnn": ((1, 28, 28), {}),
    "moon_cnn": ((3, 32, 32), {}),
    "resnet18": ((3, 32, 32), {"norm": "group"}),
}
"""The shape of an example, and what the model is told."""

CHOICES: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "lenet5": (256, 50, (1, 16, 64, 256)),
    "moon_cnn": (256, 20, (1, 16, 64, 128)),
    "fedavg_cnn": (64, 20, (1, 8, 64)),
    "resnet18": (8, 10, (1, 4)),
}
"""For `--choice`: clients, images of each, and the stack sizes besides the automatic one."""

ENOUGH = 0.8
"""How fast the automatic stack size has to be, measured by the best one in one process. On a CPU it is one by
one: a fifth less than wide stacks of the smallest models at the worst, which leave most of many workers
idle."""

STACK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLASSES = 10


def population(
    model: str, clients: int, examples: int, batch_size: int, precision: Precision = "float32"
) -> Population:
    """Clients of so many images of noise."""
    shape, params = MODELS[model]
    stream = rng.stream(0, "stacked benchmark")
    count = clients * examples
    noise = Examples(
        stream.integers(0, 256, (count, *shape), np.uint8),
        stream.integers(0, CLASSES, count).astype(np.int64),
    )
    data = Dataset(
        name="noise",
        train=noise,
        test=noise.select_rows(slice(1)),
        num_classes=CLASSES,
        input_shape=shape,
        classes=tuple(map(str, range(CLASSES))),
        normalise=Normalise(scale=255.0),
    )
    return Population(
        dataset=data,
        partition=Partition(np.arange(count), np.arange(0, count + 1, examples)),
        nets=(make_net(model, input_shape=shape, num_classes=CLASSES, **params),),
        settings=RunSettings(
            seed=0,
            rounds=1,
            cohort_size=clients,
            local=LocalTraining(epochs=1, batch_size=batch_size, lr=0.01, precision=precision),
        ),
    )


class Case:
    """One stack size, ready to run rounds.

    Args:
        federation: whose clients.
        stack_size: how many at once.
        device: "cpu" or "cuda".
        graphs: whether steps of stacks are replayed as CUDA graphs.
    """

    def __init__(self, federation: Population, stack_size: int, device: str, graphs: bool = False) -> None:
        self.federation, self.stack_size, self.device = federation, stack_size, device
        self.algorithm, self.best = FedAvg(), 0.0
        made, recorder = (self.algorithm, federation), CudaRecording if graphs else None
        self.pool = (
            SerialPool(*made, device)
            if stack_size == 1
            else StackedPool(*made, stack_size, device, recorder=recorder)
        )
        self.ctx, self.state = federation.context(0), make_initial_state(*made)
        self.peak = 0

    def measure(self, seconds: float) -> None:
        """Rounds for about so long, at least one after the first, which warms up; the best pace is kept."""
        clients = range(self.federation.settings.cohort_size)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._round(clients)
        began, rounds = perf_counter(), 0
        while not rounds or perf_counter() - began < seconds:
            self._round(clients)
            rounds += 1
        self.best = max(self.best, rounds * len(clients) / (perf_counter() - began))
        self.peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else peak_private_bytes()

    def seconds(self) -> float:
        """Of one round: processor time, so that a busy machine does not decide; by the clock for a GPU."""
        clock = perf_counter if self.device == "cuda" else process_time
        began = clock()
        self._round(range(self.federation.settings.cohort_size))
        return clock() - began

    def _round(self, clients: Sequence[int]) -> None:
        self.pool.begin_training(self.ctx, self.state, clients)()
        if self.device == "cuda":
            torch.cuda.synchronize()


class PlainCase(Case):
    """One client after the other in a loop of `torch.nn` and `torch.optim`, without the engine."""

    def __init__(self, federation: Population, device: str) -> None:
        super().__init__(federation, 1, device)
        data, local = federation.dataset, federation.settings.local
        self.model = federation.nets[0].build().to(device)
        self.start = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.x = data.normalise(torch.tensor(data.train.x, device=device))
        self.y = torch.tensor(data.train.y, device=device)
        self.local, self.generator = local, torch.Generator().manual_seed(0)

    def _round(self, clients: Sequence[int]) -> None:
        sums = [torch.zeros_like(each, dtype=torch.float64) for each in self.model.parameters()]
        for client in clients:
            rows = self.federation.partition.client_positions(client)
            held = slice(int(rows[0]), int(rows[-1]) + 1)
            self.model.load_state_dict(self.start)
            device = torch.device(self.device)
            with use_precision(self.local.precision, device), lower_precision(self.local.precision, device):
                run_plain_sgd(self.model, self.x[held], self.y[held], self.local, self.generator)
            for total, each in zip(sums, self.model.parameters(), strict=True):
                total += each.detach()
        if self.device == "cuda":
            torch.cuda.synchronize()


def flops_per_client(federation: Population) -> float:
    """Operations of one client's round."""
    meter = CostMeter(FedAvg(), federation)
    return meter.training_cost(federation.context(0), make_initial_state(FedAvg(), federation), [0]).flops


def compared(
    model: str, batch_size: int, precision: Precision, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Every stack size of one model, batch size and number type."""
    federation = population(model, max(options.stack_sizes), options.examples, batch_size, precision)
    cases = [Case(federation, size, options.device, options.graphs) for size in options.stack_sizes]
    if options.plain:
        cases.append(PlainCase(federation, options.device))
    for _ in range(options.repeats):
        for case in cases:
            case.measure(options.seconds)
    flops = flops_per_client(federation)
    for case in cases:
        yield {
            "model": model,
            "batch": batch_size,
            "precision": precision,
            "stack_size": "plain loop" if isinstance(case, PlainCase) else case.stack_size,
            "ran_at": case.pool.stack_size,
            "updates_per_s": round(case.best, 2),
            "speedup": round(case.best / cases[0].best, 3),
            "share": round(case.best * flops / options.peak / 1e12, 4) if options.peak else None,
            "memory_mb": round(case.peak / 1e6),
            "automatic": choose_stack_size("auto", federation, options.device),
        }


def choice(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The automatic stack size of a model against others."""
    clients, examples, stack_sizes = CHOICES[model]
    federation = population(model, clients, examples, batch_size=10)
    automatic = choose_stack_size("auto", federation, options.device)
    cases = [Case(federation, stack_size, options.device) for stack_size in sorted({automatic, *stack_sizes})]
    for case in cases:
        case.seconds()
    turns: list[dict[int, float]] = []
    for turn in range(options.repeats):
        there_and_back = cases if turn % 2 == 0 else cases[::-1]
        turns.append({case.stack_size: case.seconds() for case in there_and_back})
    ratios = {case.stack_size: median(t[case.stack_size] / t[automatic] for t in turns) for case in cases}
    return {
        "model": model,
        "clients": clients,
        "automatic": automatic,
        "automatic_by": {str(stack_size): round(ratio, 3) for stack_size, ratio in ratios.items()},
        "choice": round(min(ratios.values()), 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of Markdown."""
    names = ("model", "batch", "precision", "stack_size", "updates_per_s", "speedup", "share", "memory_mb")
    lines = [names, ("---",) * len(names), *([row[name] for name in names] for row in rows)]
    return "\n".join(
        "| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines
    )


def main() -> int:
    """Measure what the command line names; 1 if the automatic choice was asked about and is not good."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, help="lenet5; with --choice all")
    parser.add_argument("--batches", nargs="+", type=int, default=[10])
    parser.add_argument(
        "--precisions", nargs="+", choices=get_args(Precision), default=["float32"], help="of local steps"
    )
    parser.add_argument("--plain", action="store_true", help="measure a plain loop of torch.nn beside them")
    parser.add_argument("--graphs", action="store_true", help="replay the steps of stacks as CUDA graphs")
    parser.add_argument(
        "--stack-sizes", nargs="+", type=int, default=list(STACK_SIZES), help="the first is compared with"
    )
    parser.add_argument("--examples", type=int, default=50, help="of each client")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, help="3; with --choice 7")
    parser.add_argument("--choice", action="store_true", help="compare the automatic stack size with others")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peak", type=float, help="the device's peak in single precision, in TFLOPS")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(json.dumps({"device": name, **here()}), flush=True)
    if options.choice:
        options.repeats = options.repeats or 7
        found = [said(choice(model, options)) for model in options.models or CHOICES]
        return int(min(row["choice"] for row in found) < ENOUGH)
    options.repeats, rows = options.repeats or 3, []
    for model in options.models or ["lenet5"]:
        for batch_size, precision in product(options.batches, options.precisions):
            rows += [said(row) for row in compared(model, batch_size, precision, options)]
    print(table(rows))
    return 0


def said(row: dict[str, Any]) -> dict[str, Any]:
    """The same row, printed."""
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
