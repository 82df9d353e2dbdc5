"""ServerRoom: the server's share of a GPU, reserved before its process starts.

Without that an actor that asks for a share which others hold waits inside Ray, without an end and without a
word.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.actor_group import PLACEMENT_SECONDS
from fedsim.errors import NoCapacityNow
from fedsim.plugins import plugin_environment

HEAD = "node:__internal_head__"
"""A resource that Ray gives the head alone; a crumb of it keeps a reservation there."""


class ServerPlacement:
    """The place of an actor that does the server's work: beside its caller, with a share of a GPU or none.

    Args:
        share: of a GPU of the head's; 0 for none, and then nothing is reserved.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._group = placement_group([{"GPU": share, HEAD: 0.001}]) if share else None

    def make_actor_options(self) -> dict[str, Any]:
        """The options of the actor."""
        # The processes of a cluster have the environment of its start, not ours.
        told: dict[str, Any] = (
            {"runtime_env": {"env_vars": plugin_environment()}} if plugin_environment() else {}
        )
        if self._group is None:
            # On the head, where the data sets are.
            here = ray.get_runtime_context().get_node_id()
            return told | {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
        placed = PlacementGroupSchedulingStrategy(self._group)
        return told | {"scheduling_strategy": placed, "num_gpus": self.share}

    def wait_for_gpu(self) -> None:
        """Wait until it is there; at once where nothing is reserved.

        Raises:
            NoRoomNow: if others hold it.
        """
        if self._group is not None and not self._group.wait(PLACEMENT_SECONDS):
            free = ray.available_resources().get("GPU", 0)
            raise NoCapacityNow(
                f"the server's {self.share:g} GPU of the head did not come free within "
                f"{PLACEMENT_SECONDS:g} s; free now on the whole cluster: {free:g} GPU",
                "wait for other work to end, or set resources.server_gpus to 0: then it trains on its CPU",
            )

    def close(self) -> None:
        """Give it back, and end the actor that has it."""
        if self._group is not None:
            remove_placement_group(self._group)
