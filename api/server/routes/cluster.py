"""The cluster: what there is, what is free, and whose actors are where."""

from __future__ import annotations

from fastapi import APIRouter

from api.server.dependencies import ServiceOf
from api.server.errors import describe_problems
from jobs.local_ray.cluster import ClusterState

router = APIRouter(tags=["cluster"])


@router.get("/cluster", responses=describe_problems(503))
def get_cluster(service: ServiceOf) -> ClusterState:
    """Look at the nodes, their CPUs and GPUs, what of them is free, and the actors of each job."""
    return service.queue.read_cluster_state()
