"""The cluster: what there is, what is free, and whose actors are where."""

from __future__ import annotations

from fastapi import APIRouter

from api.dependencies import ServiceOf
from api.errors import problems
from jobs.cluster import ClusterState

router = APIRouter(tags=["cluster"])


@router.get("/cluster", responses=problems(503))
def get_cluster(service: ServiceOf) -> ClusterState:
    """Look at the nodes, their CPUs and GPUs, what of them is free, and the actors of each job."""
    return service.queue.cluster()
