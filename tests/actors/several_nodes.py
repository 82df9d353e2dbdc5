"""The preset of many clients on several nodes, in a Ray of its own; prints what happened, as JSON.

    python -m tests.actors.several_nodes

A head that has no CPU for actors, as in ray_cluster.yaml, and two workers with logical CPUs and GPUs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.cluster_utils import Cluster

from fedsim.errors import DoesNotFit
from jobs.run.execute import execute
from jobs.run.listener import RunListener
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.store.records import RoundRecord

PRESET = "large-n-low-c"
SMALL = (
    "rounds=2",
    "data.dataset.examples=20000",
    "data.dataset.test_examples=500",
    "local.epochs=1",
    "evaluation.every=1",
    "resources.gpus_per_worker=0.4",
)


def run(sets: Sequence[str]) -> dict[str, Any]:
    """Run the preset, and look in every round at who is where."""
    records: list[RoundRecord] = []
    placed: list[tuple[str, float]] = []

    class PlacementNotes(RunListener):
        def on_round(self, record: RoundRecord) -> None:
            records.append(record)
            placed.clear()
            for group in ray.util.placement_group_table().values():
                nodes, bundles = group["bundles_to_node_id"], group["bundles"]
                placed.extend((nodes[number], bundles[number]["GPU"]) for number in bundles)

    execute(load_spec(PRESET, [*SMALL, *sets]), Settings.from_env(), listener=PlacementNotes())
    return {
        "digests": [record.digest for record in records],
        "actors": [record.engine.actors for record in records],
        "placed": placed,
    }


def refusal(sets: Sequence[str]) -> str:
    """The answer to more than there is."""
    try:
        run(sets)
    except DoesNotFit as error:
        return str(error)
    raise AssertionError("it was accepted")


def main() -> None:
    """Start the nodes, run, end them."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=4, num_gpus=gpus) for gpus in (1, 2)]
        cluster.wait_for_nodes()
        os.environ["FEDSIM_RAY_ADDRESS"] = cluster.address
        found = run(["resources.workers=3"])
        refused = refusal(["resources.workers=7"])
        print(json.dumps({**found, "refused": refused, "nodes": [node.node_id for node in nodes]}))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
