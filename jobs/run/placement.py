"""How many workers a run gets, and of what size."""

from __future__ import annotations

from collections.abc import Sequence

from actors.resources import ClusterNode, Placement, place_workers, reserve_server_gpu
from fedsim.engine.blocks import count_blocks
from fedsim.engine.experiment import Experiment
from jobs.spec import JobSpec


def count_useful_workers(experiment: Experiment) -> int:
    """How many workers of a run can have something to do: as many as a round has clients, or stacks.

    With several architectures that is of a cohort with as many clients of each.
    """
    return count_blocks(range(experiment.cohort_size), experiment.stack_sizes or (1,))


def choose_placement(
    experiment: Experiment, spec: JobSpec, nodes: Sequence[ClusterNode], *, shrink: bool = False
) -> Placement:
    """How many workers a run has, and of what size.

    Args:
        experiment: never gets more workers than its cohort has clients, or stacks of clients.
        spec: what it asks for.
        nodes: where they would be.
        shrink: take fewer than asked for rather than none, as after the loss of a node.

    Raises:
        DoesNotFit: with the arithmetic.
    """
    asked, nodes = spec.resources, reserve_server_gpu(nodes, spec.resources.server_gpus)
    size, most = (asked.cpus_per_worker, asked.gpus_per_worker), count_useful_workers(experiment)
    if shrink and asked.workers != "auto":
        return place_workers("auto", *size, nodes, most=min(most, asked.workers))
    return place_workers(asked.workers, *size, nodes, most=most)
