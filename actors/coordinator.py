"""Coordinator: the server of the federation, as an actor.

It owns the client actors, the server state and the references to the clients' memories. When it dies, they
die with it, so a run leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import ray
import torch

from fedsim import tree
from fedsim.experiment import Experiment
from fedsim.faults import DEFAULT, Faults
from fedsim.population import Population
from fedsim.simulation import RoundResult, simulate

from .crew import Crew
from .ray_pool import RayPool
from .resources import Placement


@dataclass(frozen=True)
class Phase:
    """What the coordinator is busy with, for people who wait."""

    text: str


Progress: TypeAlias = Phase | RoundResult


class CoordinatorProcess:
    """What a Coordinator does; an actor of it is made by `Coordinator`.

    Args:
        experiment: the run.
        placement: its client actors.
        faults: what happens when a client raises or an actor dies.
    """

    def __init__(self, experiment: Experiment, placement: Placement, faults: Faults = DEFAULT) -> None:
        torch.set_num_threads(1)
        self.experiment, self.placement, self.faults = experiment, placement, faults
        self.params: dict[str, Any] = {}

    def run(self) -> Iterator[Progress]:
        """Run the federation: phases while it is set up, then one result per round, without the state."""
        experiment = self.experiment
        yield Phase(f"placing {self.placement.workers} client actors")
        crew = Crew(self.placement, inline=not experiment.algorithm.stateful)
        try:
            population = yield from _phases(experiment.preparing())
            yield Phase("waiting for the client actors")
            pool = RayPool(experiment.algorithm, population, crew, faults=self.faults)
            yield Phase("round 1")
            for result in simulate(
                experiment.algorithm, population, pool, evaluate_every=experiment.evaluate_every
            ):
                self.params = tree.to_numpy(result.state.params)
                yield replace(result, state=None)
        finally:
            crew.close()

    def model(self) -> dict[str, Any]:
        """The global model after the last finished round, as NumPy arrays by parameter name."""
        return self.params

    def pid(self) -> int:
        """The process that this actor runs in."""
        return os.getpid()


def _phases(preparing: Generator[str, None, Population]) -> Generator[Phase, None, Population]:
    """What a preparation says, as phases; its return value is the population."""
    while True:
        try:
            yield Phase(next(preparing))
        except StopIteration as end:
            population: Population = end.value
            return population


Coordinator = ray.remote(num_cpus=0)(CoordinatorProcess)
