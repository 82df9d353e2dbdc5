"""The number and the size of a run's workers."""

from __future__ import annotations

from collections.abc import Sequence

from actors.resources import ClusterNode, Placement, place_workers, reserve_server_gpu
from fedsim.engine.blocks import count_blocks
from fedsim.engine.experiment import Experiment
from jobs.spec import JobSpec


def count_useful_workers(experiment: Experiment) -> int:
    """Count the workers that a round can keep busy: one per client, or one per stack of clients.

    With several architectures, the cohort is assumed to have equally many clients of each.
    """
    return count_blocks(range(experiment.updates_per_round), experiment.stack_sizes or (1,))


def choose_placement(
    experiment: Experiment, spec: JobSpec, nodes: Sequence[ClusterNode], *, shrink: bool = False
) -> Placement:
    """Choose the number and the size of a run's workers.

    Args:
        experiment: gets at most one worker per client of its cohort, or per stack of clients.
        spec: its `resources` apply.
        nodes: of the cluster.
        shrink: take fewer workers than the spec asks for if they do not fit, as after the loss of a node.

    Raises:
        DoesNotFit: if the workers do not fit; the message holds the arithmetic.
    """
    asked, nodes = spec.resources, reserve_server_gpu(nodes, spec.resources.server_gpus)
    size, most = (asked.cpus_per_worker, asked.gpus_per_worker), count_useful_workers(experiment)
    if shrink and asked.workers != "auto":
        return place_workers("auto", *size, nodes, most=min(most, asked.workers))
    return place_workers(asked.workers, *size, nodes, most=most)
