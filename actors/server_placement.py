"""ServerPlacement: the server's share of a GPU, reserved before the server's actor starts.

Without the reservation an actor whose share is in use waits inside Ray, with no limit and no message.
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
"""A resource that only the head has; a tiny amount of it places a reservation on the head."""


class ServerPlacement:
    """The placement of the server's actor: on its caller's node, or on the head with a share of a GPU.

    Args:
        share: of one of the head's GPUs; 0 for no GPU and no reservation.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._group = placement_group([{"GPU": share, HEAD: 0.001}]) if share else None

    def make_actor_options(self) -> dict[str, Any]:
        """Make the Ray options of the actor."""
        # Processes of a cluster have the environment of its start, without this process's variables.
        environment: dict[str, Any] = (
            {"runtime_env": {"env_vars": plugin_environment()}} if plugin_environment() else {}
        )
        if self._group is None:
            # On the caller's node, where the data sets are.
            here = ray.get_runtime_context().get_node_id()
            return environment | {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
        strategy = PlacementGroupSchedulingStrategy(self._group)
        return environment | {"scheduling_strategy": strategy, "num_gpus": self.share}

    def wait_for_gpu(self) -> None:
        """Wait until the share is free; return at once if nothing is reserved.

        Raises:
            NoCapacityNow: if other work holds the share.
        """
        if self._group is not None and not self._group.wait(PLACEMENT_SECONDS):
            free = ray.available_resources().get("GPU", 0)
            raise NoCapacityNow(
                f"the server's {self.share:g} GPU of the head did not come free within "
                f"{PLACEMENT_SECONDS:g} s; free now on the whole cluster: {free:g} GPU",
                "wait for other work to end, or set resources.server_gpus to 0: the server then uses its CPU",
            )

    def close(self) -> None:
        """Give the share back; this ends the actor that has it."""
        if self._group is not None:
            remove_placement_group(self._group)
