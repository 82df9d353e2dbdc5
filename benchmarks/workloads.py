"""The workloads of the engine benchmark, and the plain loop that the engine is measured against.

The plain loop is the work that a round must do and nothing else: local SGD with `torch.nn` and
`torch.optim`, in P processes of one thread each. It knows nothing of fedsim but the data and the partition.
"""

from __future__ import annotations

import multiprocessing
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.data import load_dataset, make_partition
from fedsim.data.dataset import Dataset, Examples, Normalise
from fedsim.data.partition import Partition
from fedsim.models import make_net


@dataclass(frozen=True)
class Workload:
    """One workload: data, clients, model, local work."""

    name: str
    clients: int
    per_client: int
    cohort: int
    rounds: int
    model: str
    local: LocalTraining

    def dataset(self) -> Dataset:
        """Fashion-MNIST, or seeded noise of CIFAR-10's shape: the values do not change the cost."""
        if self.name != "B":
            return load_dataset("fashion_mnist", roots=[Path.home() / ".fedsim" / "data"])
        draw = np.random.default_rng(0)
        parts = [
            Examples(draw.integers(0, 256, (n, 3, 32, 32), np.uint8), draw.integers(0, 10, n))
            for n in (50_000, 1000)
        ]
        channels = Normalise((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), 255.0)
        return Dataset("noise", *parts, 10, (3, 32, 32), tuple("0123456789"), channels)

    def population(self) -> Population:
        """The federation of this workload."""
        data = self.dataset()
        wanted = self.clients * self.per_client
        labels = data.train.y[:wanted]
        partition = make_partition("iid", labels=labels, num_clients=self.clients, num_classes=10, seed=0)
        return Population(
            dataset=data,
            partition=partition,
            nets=(make_net(self.model, input_shape=data.input_shape, num_classes=10),),
            settings=RunSettings(seed=1, rounds=self.rounds, cohort_size=self.cohort, local=self.local),
        )


WORKLOADS = {
    "A": Workload("A", 1000, 50, 50, 12, "lenet5", LocalTraining(epochs=1, batch_size=10, lr=0.05)),
    "B": Workload(
        "B", 100, 500, 10, 2, "moon_cnn", LocalTraining(epochs=10, batch_size=64, lr=0.01, momentum=0.9)
    ),
    "C": Workload("C", 1000, 50, 50, 100, "lenet5", LocalTraining(epochs=1, batch_size=10, lr=0.05)),
}


class PlainLoop:
    """The same local SGD in P processes, without any engine."""

    def __init__(self, workload: Workload, processes: int) -> None:
        self.workload, self.processes = workload, processes
        self.workers = multiprocessing.get_context("spawn").Pool(processes)
        torch.manual_seed(0)
        population = workload.population()
        self.partition: Partition = population.partition
        self.model = population.nets[0].build()
        prepare = partial(_train, workload, _state(self.model), [self.partition.client_positions(0)])
        self.workers.starmap(prepare, [(0,)] * processes)

    def updates_per_second(self) -> float:
        """Client updates per second over the workload's rounds."""
        load, draw = self.workload, np.random.default_rng(1)
        began = perf_counter()
        for number in range(load.rounds):
            cohort = draw.choice(load.clients, load.cohort, replace=False)
            shares = [
                [self.partition.client_positions(int(c)) for c in part]
                for part in np.array_split(cohort, self.processes)
            ]
            state = _state(self.model)
            sums = self.workers.starmap(_train, [(load, state, share, number) for share in shares])
            with torch.no_grad():
                for parameter, *parts in zip(self.model.parameters(), *sums, strict=True):
                    parameter.copy_(sum(parts) / load.cohort)
        return load.rounds * load.cohort / (perf_counter() - began)

    def close(self) -> None:
        """End the processes."""
        self.workers.close()
        self.workers.join()


def _state(model: nn.Module) -> OrderedDict[str, Any]:
    return OrderedDict((name, value.clone()) for name, value in model.state_dict().items())


_HERE: dict[str, Any] = {}


def _train(workload: Workload, state: dict[str, Any], clients: list[Any], number: int) -> list[torch.Tensor]:
    """One process's share of a round: the sum of its clients' models."""
    torch.set_num_threads(1)
    if not _HERE:
        data = workload.dataset()
        x = data.normalise(torch.tensor(data.train.x[: workload.clients * workload.per_client]))
        y = torch.tensor(data.train.y[: workload.clients * workload.per_client])
        build = make_net(workload.model, input_shape=data.input_shape, num_classes=10).build
        _HERE.update(x=x, y=y, model=build())
    model, local, total = _HERE["model"], workload.local, None
    for client, rows in enumerate(clients):
        model.load_state_dict(state)
        generator = torch.Generator().manual_seed(number * workload.clients + client)
        run_plain_sgd(model, _HERE["x"][rows], _HERE["y"][rows], local, generator)
        parameters = [parameter.detach().double() for parameter in model.parameters()]
        total = parameters if total is None else [a + b for a, b in zip(total, parameters, strict=True)]
    return total or []


def run_plain_sgd(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalTraining, generator: torch.Generator
) -> None:
    """Train a module on one client's examples, which are on its device."""
    optimiser = torch.optim.SGD(model.parameters(), local.lr, local.momentum, weight_decay=local.weight_decay)
    for _ in range(local.epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for start in range(0, len(x), local.batch_size):
            rows = order[start : start + local.batch_size]
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
