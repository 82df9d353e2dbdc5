"""Coordinator: the server of a run, as a Ray actor.

The coordinator owns the client actors, the server state and the references to the client states. All of them
end with it: after the coordinator's death only the checkpoints are left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import ray
import torch

from actors.actor_group import ActorGroup
from actors.device import acquire_device, describe_cpu_fallback
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.checkpoints.experiment_run import NO_SECONDS, CheckpointPolicy, ExperimentRun, Progress, Status
from fedsim.clients.population import Population
from fedsim.engine.blocks import count_blocks
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.pools import stack_size_by_model
from fedsim.engine.simulation import RoundResult


class CoordinatorProcess(ExperimentRun):
    """The class behind the Ray actor `Coordinator`.

    Args:
        experiment: the run.
        placement: the number and the size of its client actors.
        faults: the policy for a client that raises, or an actor that dies.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        placement_group_name: for the placement group of the client actors.
        known_seconds: the seconds of each round that may run again, by round, for the stop rule.
    """

    def __init__(
        self,
        experiment: Experiment,
        placement: Placement,
        faults: Faults = DEFAULT,
        checkpoint_policy: CheckpointPolicy | None = None,
        placement_group_name: str = "",
        known_seconds: Mapping[int, float] = NO_SECONDS,
    ) -> None:
        super().__init__(experiment, checkpoint_policy, known_seconds)
        torch.set_num_threads(1)
        self.device_share = acquire_device(placement.server_gpus, "resources.server_gpus")
        self.placement, self.faults, self.placement_group_name = placement, faults, placement_group_name
        self._actor_group: ActorGroup | None = None

    @property
    def server_device(self) -> torch.device | str:
        """Return the device of the coordinator's share of a GPU; "cpu" without a share."""
        return self.device_share.device

    def reserve_resources(self) -> Iterator[Status]:
        """Place the workers.

        Raises:
            DoesNotFit: if the coordinator cannot use its share of a GPU.
            NoCapacityNow: if other work holds the resources.
        """
        self.device_share.raise_if_refused()
        yield Status(f"placing {self.placement.workers} workers")
        inline = not self.experiment.algorithm.stateful
        self._actor_group = ActorGroup(self.placement, inline=inline, name=self.placement_group_name)

    def open_pool(self, population: Population) -> Generator[Status, None, RayPool]:
        """Send the population to the workers, and wait until they are ready."""
        if self._actor_group is None:
            raise RuntimeError("call reserve_resources() first")
        yield Status("waiting for the workers")
        experiment = self.experiment
        pool = RayPool(
            experiment.algorithm,
            population,
            self._actor_group,
            faults=self.faults,
            stack=experiment.stack,
            graphs=experiment.graphs,
        )
        for text in self._list_device_warnings(pool):
            yield Status(text)
        return pool

    def run(self) -> Generator[Progress, None, None]:
        """Run all rounds; see `ExperimentRun`. Warnings are statuses, because the log stays on the head."""
        warnings = list[str]()
        with collect_warnings(warnings):
            for step in super().run():  # a warning comes before the step that logged it
                while warnings:
                    yield Status(f"warning: {warnings.pop(0)}")
                yield step
            for text in warnings:
                yield Status(f"warning: {text}")

    def release_resources(self) -> None:
        """End the workers."""
        if self._actor_group is not None:
            self._actor_group.close()

    def complete_result(self, result: RoundResult) -> RoundResult:
        """Add the name of the server's GPU to a round's result."""
        if not self.placement.server_gpus:
            return result
        return replace(result, engine={**result.engine, "server_device": self.device_share.name})

    def _list_device_warnings(self, pool: RayPool) -> list[str]:
        server = [{"address": "the head", "name": self.device_share.name}]
        warnings = describe_cpu_fallback(pool.actor_infos), describe_cpu_fallback(server, "the server trains")
        return [text for text in (*warnings, self._describe_idle_workers(pool)) if text]

    def _describe_idle_workers(self, pool: RayPool) -> str:
        """Describe the workers that have no work in any round; "" if all have some."""
        cohort, workers = self.experiment.updates_per_round, self.placement.workers
        nets = pool.population.nets
        sizes = list(map(stack_size_by_model(nets, pool.stack_size), range(len(nets))))
        if (busy := count_blocks(range(cohort), sizes)) >= workers:
            return ""
        why, stack = f"{cohort} clients come to a round", ""
        if max(sizes) > 1:
            why, stack = f"up to {max(sizes)} of {cohort} clients train at once", ", or resources.stack: off"
        idle = f"{workers - busy} of {workers} workers have no work"
        return f"warning: {idle}, because {why}: resources.workers: {busy}{stack}"

    def get_pid(self) -> int:
        """Return the process id of this actor."""
        return os.getpid()


Coordinator = ray.remote(num_cpus=0)(CoordinatorProcess)


@contextmanager
def collect_warnings(found: list[str]) -> Iterator[None]:
    """Add each warning that fedsim logs within the block to a list."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, collector = logging.getLogger("fedsim"), Collector(logging.WARNING)
    logger.addHandler(collector)
    try:
        yield
    finally:
        logger.removeHandler(collector)
