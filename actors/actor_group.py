"""ActorGroup: the client actors of one run, placed together, and replaced when they die."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any, NoReturn

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.actor_errors import (
    ACTOR_DEATH_ERRORS,
    first_line,
    living_nodes,
    make_death_error,
    unwrap_task_error,
)
from actors.client_actor import ClientActor, MemoryUsage
from actors.resources import Placement
from fedsim.core import LocalTraining
from fedsim.engine.faults import Faults
from fedsim.errors import NoCapacityNow, NodeLost, ObjectLost, PoolFailed
from fedsim.plugins import plugin_environment

PLACEMENT_SECONDS = 10.0

START_SECONDS = 300.0
"""Seconds that an actor may take to start and to map the data; a busy machine takes a minute."""

NODE_CHECK_SECONDS = 2.0
"""Seconds between two checks that the nodes are alive, while no result arrives."""

CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:2")}
"""8 MiB of workspace for each thread that multiplies on a GPU, as each client of a stack may.

cuBLAS takes 32 MiB on an H100, and keeps them.
"""

INLINE_BYTES = 8 << 20
"""Ray's own limit for results inside replies is 100 kB, less than the sum of one small model."""

LEAST_STORED_BYTES = 8 << 10
"""A client state of this size or more goes into the object store. Ray's own limit is 100 kB; smaller states
would stay in the coordinator, which cannot spill: 10,000 clients would take a gigabyte."""


class ActorGroup:
    """The client actors of a run, in numbered slots of one placement group.

    Args:
        placement: the number of actors, and their size.
        inline: send results inside the replies, which is three times as fast as the object store. Not for
            algorithms with client states: the object store can spill the states to disk.
        name: of the placement group. Another process can remove the group by its name: Ray keeps a group that
            an actor made until the actor's job ends, even if the actor was killed.

    Attributes:
        actors: by slot.
        actor_infos: by slot: process id, node, the node's address, device and the device's name.
        restarts: how many actors were replaced.

    Raises:
        NoCapacityNow: if the cluster is large enough, but the resources did not come free in time.
    """

    def __init__(self, placement: Placement, *, inline: bool = False, name: str = "") -> None:
        self.placement, self.inline = placement, inline
        self.restarts = 0
        self.placement_group: PlacementGroup = placement_group(
            [placement.to_ray_bundle()] * placement.workers, strategy="SPREAD", name=name
        )
        if not self.placement_group.wait(PLACEMENT_SECONDS):
            remove_placement_group(self.placement_group)
            free = ray.available_resources()
            raise NoCapacityNow(
                f"{placement.workers} workers x {placement.cpus:g} CPU and {placement.gpus:g} GPU did not "
                f"come free within {PLACEMENT_SECONDS:g} s; free now on the whole cluster: "
                f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU",
                "wait for other work to end, or ask for fewer or smaller workers",
            )
        self._slot_nodes: dict[int, str] = placement_group_table(self.placement_group)["bundles_to_node_id"]
        self.actors: list[Any] = [self._start_actor(slot) for slot in range(placement.workers)]
        self.actor_infos: list[dict[str, Any]] = [{} for _ in self.actors]
        self._join_arguments: tuple[Any, ...] = ()
        self._pending_joins: dict[int, tuple[Any, float]] = {}

    def _start_actor(self, slot: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.placement_group, placement_group_bundle_index=slot)
        most = INLINE_BYTES if self.inline else LEAST_STORED_BYTES
        options = ClientActor.options(
            num_cpus=self.placement.cpus,
            num_gpus=self.placement.gpus,
            scheduling_strategy=strategy,
            runtime_env={
                "env_vars": {"RAY_max_direct_call_object_size": str(most)} | CUBLAS | plugin_environment()
            },
        )
        return options.remote(self.placement.gpus)

    def set_up_actors(
        self, algorithm: Any, population: Any, faults: Faults, graphs: bool
    ) -> list[dict[str, Any]]:
        """Send the run to every actor, and wait until all are ready; replace actors that die meanwhile.

        Args:
            algorithm: the algorithm, or a reference to it.
            population: a reference to the population.
            faults: the run's fault policy.
            graphs: replay the steps of stacks as CUDA graphs, on GPUs.

        Returns:
            `actor_infos`.

        Raises:
            PoolFailed: if too many actors died, or an actor took too long.
            OutOfMemory: if the actors died because memory ran out.
            NodeLost: if the node of an actor is gone.
            DoesNotFit: if an actor cannot use the GPU that it was given.
        """
        self._join_arguments = (algorithm, population, faults, graphs)
        for slot in range(len(self.actors)):
            self._request_join(slot)
        # By slot: a node that dies takes all its actors with it, and Ray notices the loss of a node last.
        deaths = Counter[int]()
        while self._pending_joins:
            slots = {reference: slot for slot, (reference, _) in self._pending_joins.items()}
            for reference in ray.wait(list(slots), num_returns=1, timeout=NODE_CHECK_SECONDS)[0]:
                try:
                    self.record_join(slots[reference])
                except ACTOR_DEATH_ERRORS as error:
                    slot = slots[reference]
                    deaths[slot] += 1
                    if (times := deaths[slot]) > faults.max_retries:
                        raise make_death_error("a worker died while it started", times, error) from error
                    self.replace_actor(slot, error)
            self.check_actors_alive()
        return self.actor_infos

    def _request_join(self, slot: int) -> None:
        self._pending_joins[slot] = self.actors[slot].join_run.remote(*self._join_arguments), time.monotonic()

    def record_join(self, slot: int) -> None:
        """Store the info of the actor in this slot; do nothing if no actor was started there.

        Raises:
            RayError: if the actor died first; any error that its code raised.
        """
        if slot not in self._pending_joins:
            return
        reference, _ = self._pending_joins[slot]
        try:
            self.actor_infos[slot] = ray.get(reference)
        except RayTaskError as error:
            raise unwrap_task_error(error, f"worker {slot}") from None
        del self._pending_joins[slot]

    def check_actors_alive(self) -> None:
        """Check that every node is alive, and that every actor starts in time.

        Raises:
            NodeLost: if a node is gone.
            PoolFailed: if an actor does not start.
        """
        alive = living_nodes()
        for slot in range(len(self.actor_infos)):
            if self._find_node(slot) not in alive:
                raise self._make_node_lost_error(slot, "the cluster no longer counts it as alive")
        for slot, (joined, since) in self._pending_joins.items():
            # `record_join` runs only after the actor's first call: ask Ray whether the actor has joined.
            late = time.monotonic() - since > START_SECONDS
            if late and not ray.wait([joined], timeout=0)[0]:
                raise PoolFailed(
                    f"worker {slot} did not start within {START_SECONDS:g} s",
                    "look at the load of the nodes, and at Ray's own logs",
                )

    def replace_actor(self, slot: int, error: Exception) -> None:
        """Start a new actor in the slot of a dead one; calls to the new actor wait until it is ready.

        Args:
            slot: of the dead actor.
            error: the error that showed its death.

        Raises:
            NodeLost: if the actor's node is gone too.
        """
        self.restarts += 1
        ray.kill(self.actors[slot])
        if self._find_node(slot) not in living_nodes():
            raise self._make_node_lost_error(slot, first_line(error)) from error
        self.actors[slot] = self._start_actor(slot)
        self._request_join(slot)

    def raise_object_loss(self, error: Exception) -> NoReturn:
        """Raise the error for a lost object.

        Raises:
            NodeLost: if the node of an actor is gone.
            ObjectLost: if Ray counts every node as alive.
            PoolFailed: if an actor does not start.
        """
        self.check_actors_alive()
        # Ray may notice the loss of an object before the loss of its node: name no node.
        raise ObjectLost(f"an object of the run was lost from Ray's memory: {first_line(error)}") from error

    def _make_node_lost_error(self, slot: int, cause: str) -> NodeLost:
        """Make the error for the lost node of the actor in this slot."""
        address = self.actor_infos[slot].get("address", "at an unknown address")
        return NodeLost(f"{address} ({self._find_node(slot)})", slot, cause)

    def _find_node(self, slot: int) -> str:
        """Return the node of an actor; before the actor has joined, the node of its slot."""
        node: str = self.actor_infos[slot].get("node") or self._slot_nodes[slot]
        return node

    def set_local_training(self, local: LocalTraining) -> None:
        """Replace the population's local training on all actors from now on."""
        ray.get([actor.set_local_training.remote(local) for actor in self.actors])

    def measure_memory(self) -> MemoryUsage:
        """Return the peak memory of the actor that has needed most so far."""
        usages: list[MemoryUsage] = ray.get([actor.measure_memory.remote() for actor in self.actors])
        gpu = max((usage.gpu for usage in usages if usage.gpu is not None), default=None)
        cap = min((usage.gpu_cap for usage in usages if usage.gpu_cap is not None), default=None)
        return MemoryUsage(max(usage.private for usage in usages), gpu, cap)

    def close(self) -> None:
        """End the actors, and give their resources back."""
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.placement_group)
        self.actors = []
