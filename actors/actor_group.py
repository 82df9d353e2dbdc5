"""Crew: the client actors of one run, placed together, replaced when they die."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.actor_errors import DEATHS, cause_of, first_line, gave_up, living_nodes
from actors.client_actor import ClientActor, Usage
from actors.resources import Placement
from fedsim.core import Local
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.errors import NodeLost, NoRoomNow, PoolFailed
from fedsim.plugins import variables

PLACEMENT_SECONDS = 10.0

START_SECONDS = 300.0
"""How long an actor may take to start and to have the data at hand; on a busy machine that is a minute."""

LOOK_SECONDS = 2.0
"""How often to look whether the nodes are alive, while nothing arrives."""

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
        name: of the placement group, so that others can remove it: Ray keeps a group that an actor made for
            as long as the actor's whole job lasts, even when the actor was killed.

    Attributes:
        actors: by slot.
        members: what each said of itself when it joined: process id, node, its address, device and its name.
        restarts: how often one was replaced.

    Raises:
        NoRoomNow: if the cluster has room in principle but none came free in time.
    """

    def __init__(self, placement: Placement, *, inline: bool = False, name: str = "") -> None:
        self.placement, self.inline = placement, inline
        self.restarts = 0
        self.group: PlacementGroup = placement_group(
            [placement.bundle()] * placement.workers, strategy="SPREAD", name=name
        )
        if not self.group.wait(PLACEMENT_SECONDS):
            remove_placement_group(self.group)
            free = ray.available_resources()
            raise NoRoomNow(
                f"{placement.workers} workers x {placement.cpus:g} CPU and {placement.gpus:g} GPU did not "
                f"come free within {PLACEMENT_SECONDS:g} s; free now on the whole cluster: "
                f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU",
                "wait for other work to end, or ask for fewer or smaller workers",
            )
        self._homes: dict[int, str] = placement_group_table(self.group)["bundles_to_node_id"]
        self.actors: list[Any] = [self._start(slot) for slot in range(placement.workers)]
        self.members: list[dict[str, Any]] = [{} for _ in self.actors]
        self._joined: tuple[Any, ...] = ()
        self._joining: dict[int, tuple[Any, float]] = {}

    def _start(self, slot: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=slot)
        most = INLINE_BYTES if self.inline else LEAST_STORED_BYTES
        options = ClientActor.options(
            num_cpus=self.placement.cpus,
            num_gpus=self.placement.gpus,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {"RAY_max_direct_call_object_size": str(most)} | variables()},
        )
        return options.remote(self.placement.gpus)

    def join(
        self, algorithm: Any, population: Any, faults: Faults = DEFAULT, graphs: bool = False
    ) -> list[dict[str, Any]]:
        """Hand the run to every actor and wait until all are ready; those that die on the way are replaced.

        Args:
            algorithm: the method, or a reference to it.
            population: a reference to the federation.
            faults: the run's policy.
            graphs: play the steps of clients that train at once, on GPUs.

        Returns:
            `members`.

        Raises:
            PoolFailed: if actors died again and again, or took too long.
            OutOfMemory: if that is why.
            NodeLost: if one's node went.
            DoesNotFit: if one cannot use the GPU that it was given.
        """
        self._joined = (algorithm, population, faults, graphs)
        for slot in range(len(self.actors)):
            self._invite(slot)
        deaths = 0
        while self._joining:
            slots = {reference: slot for slot, (reference, _) in self._joining.items()}
            for reference in ray.wait(list(slots), num_returns=1, timeout=LOOK_SECONDS)[0]:
                try:
                    self.welcome(slots[reference])
                except DEATHS as error:
                    deaths += 1
                    if deaths > faults.max_retries:
                        raise gave_up("client actors died while they started", deaths, error) from error
                    self.replace(slots[reference], error)
            self.look()
        return self.members

    def _invite(self, slot: int) -> None:
        self._joining[slot] = self.actors[slot].join.remote(*self._joined), time.monotonic()

    def welcome(self, slot: int) -> None:
        """Note who is in this slot, once an actor that was started there answers; else do nothing.

        Raises:
            RayError: if it died before; whatever it raised.
        """
        if slot not in self._joining:
            return
        reference, _ = self._joining[slot]
        try:
            self.members[slot] = ray.get(reference)
        except RayTaskError as error:
            raise cause_of(error, f"client actor {slot}") from None
        del self._joining[slot]

    def look(self) -> None:
        """See that nothing is waited for in vain.

        Raises:
            NodeLost: if a node is gone.
            PoolFailed: if an actor does not start.
        """
        alive = living_nodes()
        for slot in range(len(self.members)):
            if self._node(slot) not in alive:
                raise self.lost(slot, "the cluster no longer counts it as alive")
        for slot, (joined, since) in self._joining.items():
            # One that joined long ago is welcomed only when its first task has ended.
            late = time.monotonic() - since > START_SECONDS
            if late and not ray.wait([joined], timeout=0)[0]:
                raise PoolFailed(
                    f"client actor {slot} did not start within {START_SECONDS:g} s",
                    "look at the load of the nodes, and at Ray's own logs",
                )

    def replace(self, slot: int, error: Exception) -> None:
        """Start a new actor in the place of a dead one; calls to it wait until it is ready.

        Args:
            slot: whose.
            error: how its death was noticed.

        Raises:
            NodeLost: if its node is gone too: nothing could be placed there.
        """
        self.restarts += 1
        ray.kill(self.actors[slot])
        if self._node(slot) not in living_nodes():
            raise self.lost(slot, first_line(error)) from error
        self.actors[slot] = self._start(slot)
        self._invite(slot)

    def lost(self, slot: int, cause: str) -> NodeLost:
        """The error for a node that is gone with the actor in this slot."""
        address = self.members[slot].get("address", "at an unknown address")
        return NodeLost(f"{address} ({self._node(slot)})", slot, cause)

    def _node(self, slot: int) -> str:
        """The node of an actor: as it said, or, before it has joined, the one that its place is on."""
        node: str = self.members[slot].get("node") or self._homes[slot]
        return node

    def set_local(self, local: Local) -> None:
        """Have the clients train like this from now on, in place of the population's local training."""
        ray.get([actor.limit.remote(local) for actor in self.actors])

    def usage(self) -> Usage:
        """The most memory that an actor has needed so far."""
        usages: list[Usage] = ray.get([actor.usage.remote() for actor in self.actors])
        gpu = max((usage.gpu for usage in usages if usage.gpu is not None), default=None)
        cap = min((usage.gpu_cap for usage in usages if usage.gpu_cap is not None), default=None)
        return Usage(max(usage.private for usage in usages), gpu, cap)

    def close(self) -> None:
        """End the actors and give their resources back."""
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.group)
        self.actors = []
