"""`python -m tests.e2e.lost_node DIR SEED`: a run on three nodes, one of which is killed at a random round.

Prints one JSON object: the digests of all rounds, the phases, and the round at which the node was killed.
A script, because a process can be in one Ray only, and the tests are in another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from jobs.run.execute import execute
from jobs.run.listener import RunListener
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.records import RoundRecord
from tests.e2e.test_restarts import STATEFUL

QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
}
"""By default Ray asks every 3 seconds, and believes that a node is gone when it has asked five times."""

SPEC = {**STATEFUL, "resources": {"workers": 3, "cpus_per_worker": 1}, "checkpoint": {"every": 5}}


def main(folder: Path, seed: int) -> dict[str, Any]:
    """Run it, and give what is printed."""
    os.environ.update(QUICK_TO_NOTICE)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    drawn = np.random.default_rng(seed)
    fatal, victim = int(drawn.integers(1, 30)), int(drawn.integers(len(nodes)))
    phases: list[str] = []
    killed: list[int] = []

    class NodeKiller(RunListener):
        def on_status(self, text: str) -> None:
            phases.append(text)

        def on_round(self, record: RoundRecord) -> None:
            if record.round >= fatal and not killed:
                killed.append(record.round)
                cluster.remove_node(nodes[victim], allow_graceful=False)

    try:
        result = execute(
            parse_spec(SPEC),
            Settings(folder / "home"),
            checkpoints=str(folder / "checkpoints"),
            listener=NodeKiller(),
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    rounds = [(record.round, record.digest, record.engine.actors) for record in result.records]
    return {"rounds": rounds, "phases": phases, "killed": killed}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
