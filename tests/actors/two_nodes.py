"""A run over two nodes, one of which goes: `python -m tests.actors.two_nodes`, since a process has one Ray.

Prints one JSON object: whether the digests were those of SerialPool, on how many nodes the actors were, and
how the loss of one was noticed, after how many seconds.
"""

from __future__ import annotations

import json
import time
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.core import ClientTask, ClientUpdate, Context
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError, NodeLost
from fedsim.training.local_loop import TrainedModel
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything

ROUNDS = 1000
BALLAST = 64_000


class Heavy(Everything):
    """Clients keep 256 kB each: too much to travel inside replies, so it stays on the node."""

    def init_client_state(self, ctx: Context, broadcast: Any) -> Any:
        return {**super().init_client_state(ctx, broadcast), "ballast": torch.zeros(BALLAST)}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        update = super().make_update(ctx, task, trained)
        return update._replace(
            client_state={**update.client_state, "ballast": task.client_state["ballast"] + 1}
        )


def main() -> dict[str, Any]:
    """Run, lose a node after three rounds, and say how it went."""
    population = federation(rounds=ROUNDS)
    serial = simulate(Heavy(), population, SerialPool(Heavy(), population))
    expected = [next(serial) for _ in range(3)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        actor_group = ActorGroup(Placement(2, 1, 0))
        pool = RayPool(Heavy(), population, actor_group)
        nodes = [member["node"] for member in actor_group.actor_infos]
        pool.restore_client_states({client: {"ballast": torch.zeros(BALLAST)} for client in range(99)})
        restored = ray.experimental.get_object_locations(list(pool._client_states.values())).values()
        holders = {node for where in restored for node in where["node_ids"]}
        pool.drop_client_states()
        results, lost, began = [], None, 0.0
        try:
            for result in simulate(Heavy(), population, pool):
                results.append(result)
                if len(results) == 3:
                    cluster.remove_node(other, allow_graceful=False)
                    began = time.monotonic()
        except FedsimError as error:
            lost = error
        seconds = time.monotonic() - began
        try:
            pool.client_states()
            kept = "all there"
        except FedsimError as error:
            kept = type(error).__name__
        return {
            "same": [(r.digest, r.memory_digest) for r in results[:3]]
            == [(r.digest, r.memory_digest) for r in expected],
            "nodes": len(set(nodes)),
            "restored_on": len(holders),
            "error": type(lost).__name__,
            "message": str(lost),
            "named": isinstance(lost, NodeLost) and nodes[lost.slot] in lost.node,
            "seconds": seconds,
            "memories": kept,
            "rounds": len(results),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    print(json.dumps(main()))
