"""Crew: the client actors of one run, placed together, replaced when they die."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedsim.errors import DoesNotFit, PoolFailed

from .client_actor import ClientActor
from .resources import Placement

PLACEMENT_SECONDS = 10.0

INLINE_BYTES = 8 << 20
"""Ray's own limit for results inside replies is 100 kB, less than the sum of one small model."""

LEAST_STORED_BYTES = 8 << 10
"""From this size on, a client's memory lies in the object store. Left to Ray, that begins at 100 kB, and what
is smaller stays in the coordinator, where nothing spills: ten thousand clients would take a gigabyte."""


class Crew:
    """The actors of a run, in numbered slots of one placement group.

    Args:
        placement: how many, and how large.
        inline: have results travel inside the replies, which is three times as fast as through the object
            store. Not for algorithms whose clients keep memories: those belong into the store, which spills
            them.

    Raises:
        DoesNotFit: if the cluster has room in principle but none came free in time.
    """

    def __init__(self, placement: Placement, *, inline: bool = False) -> None:
        self.placement, self.inline = placement, inline
        self.restarts = 0
        self.group: PlacementGroup = placement_group(
            [placement.bundle()] * placement.workers, strategy="SPREAD"
        )
        if not self.group.wait(PLACEMENT_SECONDS):
            remove_placement_group(self.group)
            free = ray.available_resources()
            raise DoesNotFit(
                f"{placement.workers} workers x {placement.cpus:g} CPU and {placement.gpus:g} GPU did not "
                f"come free within {PLACEMENT_SECONDS:g} s; free now on the whole cluster: "
                f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU",
                "wait for other work to end, or ask for fewer or smaller workers",
            )
        self.actors: list[Any] = [self._start(slot) for slot in range(placement.workers)]
        self._joined: tuple[Any, Any] | None = None

    def _start(self, slot: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=slot)
        most = INLINE_BYTES if self.inline else LEAST_STORED_BYTES
        options = ClientActor.options(
            num_cpus=self.placement.cpus,
            num_gpus=self.placement.gpus,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {"RAY_max_direct_call_object_size": str(most)}},
        )
        return options.remote(self.placement.gpus)

    def join(self, algorithm: Any, population: Any) -> list[dict[str, Any]]:
        """Hand the run to every actor and wait until all are ready.

        Args:
            algorithm: the method, or a reference to it.
            population: a reference to the federation.

        Returns:
            Each actor's process id, node and device.

        Raises:
            PoolFailed: if an actor died while it started.
        """
        self._joined = (algorithm, population)
        try:
            ready: list[dict[str, Any]] = ray.get(
                [actor.join.remote(algorithm, population) for actor in self.actors]
            )
        except ray.exceptions.RayActorError as error:
            raise PoolFailed(f"a client actor died while it started: {error}") from error
        return ready

    def replace(self, slot: int) -> None:
        """Start a new actor in the place of a dead one; calls to it wait until it is ready."""
        self.restarts += 1
        ray.kill(self.actors[slot])
        self.actors[slot] = self._start(slot)
        if self._joined is not None:
            self.actors[slot].join.remote(*self._joined)

    def close(self) -> None:
        """End the actors and give their resources back."""
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.group)
        self.actors = []
