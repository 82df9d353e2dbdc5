"""The state of the cluster: its nodes, their free resources and load, and the actors of each job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedsim.errors import RayUnavailable

KINDS = ("CPU", "GPU")
LIVING_STATES = frozenset({"ALIVE", "PENDING_CREATION", "RESTARTING", "DEPENDENCIES_UNREADY"})
SUPERVISOR = "JobSupervisor"
MAX_ROWS = 10_000
"""The most rows in one answer of Ray."""

SUBMISSION = re.compile(r"fedsim-([a-z0-9]+)-[0-9-]+")
"""The id of the Ray job of a fedsim job; see `jobs.store.records.get_ray_job_id`."""

SUBMISSION_KEY = "fedsim_submission"
"""Metadata of a driver that is no Ray job: the id that its Ray job would have."""

_STATE = f"detail=1&limit={MAX_ROWS}&filter_keys=state&filter_predicates"
_IS, _NOT = f"{_STATE}=%3D&filter_values", f"{_STATE}=%21%3D&filter_values"
NODES = f"/api/v0/nodes?{_IS}=ALIVE"
GROUPS = f"/api/v0/placement_groups?{_NOT}=REMOVED"
ACTORS = f"/api/v0/actors?{_NOT}=DEAD"
JOBS = "/api/jobs/"
USAGE = "/nodes?view=summary"
"""The path for Ray's own page. It is not part of Ray's documented interface, so that any answer must do."""

Ask = Callable[[str], Any]
"""A function that returns the answer of Ray's dashboard at a path, as plain data."""


class Share(BaseModel):
    """An amount of one kind of resource; a fraction is a share of one CPU or GPU."""

    model_config = ConfigDict(frozen=True)

    total: float = Field(ge=0)
    free: float = Field(ge=0, description="Not reserved by any actor; a fraction may lie on several GPUs.")


class NodeUsage(BaseModel):
    """What Ray has measured on a node in the last seconds: of the whole machine, or of the container."""

    model_config = ConfigDict(frozen=True)

    cpus: int = Field(ge=1, description="Logical CPUs of the machine; jobs may have been given fewer.")
    cpu_percent: float = Field(ge=0, description="Busy part of all CPUs, in percent.")
    load: float = Field(ge=0, description="Mean number of processes that ran or waited in the last minute.")
    memory_total: int = Field(ge=0, description="Bytes.")
    memory_used: int = Field(ge=0, description="Bytes in use, by any process.")


class NodeState(BaseModel):
    """One living node."""

    model_config = ConfigDict(frozen=True)

    id: str
    address: str
    head: bool
    cpus: Share
    gpus: Share
    usage: NodeUsage | None = Field(default=None, description="Null if Ray has measured nothing yet.")


class JobActors(BaseModel):
    """The actors and resources of one job on the cluster."""

    model_config = ConfigDict(frozen=True)

    job_id: str = Field(description="The job; empty for actors that belong to none.")
    actors: int = Field(ge=0)
    waiting: int = Field(ge=0, description="Of these, how many are not alive yet.")
    cpus: float = Field(ge=0, description="Reserved by the job.")
    gpus: float = Field(ge=0)
    nodes: list[str] = Field(description="Ids of the nodes that they are on.")


class ClusterState(BaseModel):
    """The whole cluster."""

    model_config = ConfigDict(frozen=True)

    nodes: list[NodeState]
    cpus: Share
    gpus: Share
    jobs: list[JobActors]


class ReservedResources(dict[str, float]):
    """The reserved amount of each kind of resource."""

    def add(self, resources: Mapping[str, float]) -> None:
        """Reserve more."""
        for kind in KINDS:
            self[kind] = self.get(kind, 0.0) + resources.get(kind, 0.0)


def read_cluster_state(ask: Ask) -> ClusterState:
    """Read the state of the cluster.

    Args:
        ask: asks Ray's dashboard; its errors are raised on.
    """
    nodes = fetch_living_nodes(ask)
    groups = _extract_rows(ask(GROUPS))
    actors = [row for row in _extract_rows(ask(ACTORS)) if _is_job_actor(row)]
    owners = _map_job_ids(ask(JOBS))
    usages = _fetch_usages(ask)
    by_node: defaultdict[str, ReservedResources] = defaultdict(ReservedResources)
    by_job: defaultdict[str, ReservedResources] = defaultdict(ReservedResources)
    for job, node, resources in (*_list_bundles(groups), *_list_free_actors(actors)):
        by_node[node].add(resources)
        by_job[owners.get(job, "")].add(resources)
    states = [_make_node_state(node, by_node[node["node_id"]], usages.get(node["node_id"])) for node in nodes]
    return ClusterState(
        nodes=sorted(states, key=lambda node: (not node.head, node.address, node.id)),
        cpus=_sum_shares(node.cpus for node in states),
        gpus=_sum_shares(node.gpus for node in states),
        jobs=_list_job_actors(actors, owners, by_job),
    )


def fetch_living_nodes(ask: Ask) -> list[dict[str, Any]]:
    """Fetch Ray's row for each living node.

    Args:
        ask: asks Ray's dashboard; its errors are raised on.
    """
    return [node for node in _extract_rows(ask(NODES)) if node["state"] == "ALIVE"]


def _fetch_usages(ask: Ask) -> dict[str, NodeUsage]:
    """Fetch the usage of each node by its id; leave out nodes without a usable answer."""
    try:
        rows = list(ask(USAGE)["data"]["summary"])
    except (RayUnavailable, LookupError, TypeError):
        return {}
    usages = {}
    for row in rows:
        # A node is listed before it has measured anything.
        with suppress(LookupError, TypeError, ValueError):
            total, available, *_ = row["mem"]
            usages[row["raylet"]["nodeId"]] = NodeUsage(
                cpus=row["cpus"][0],
                cpu_percent=row["cpu"],
                load=row["loadAvg"][0][0],
                memory_total=total,
                memory_used=total - available,
            )
    return usages


def _extract_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["data"]["result"]["result"]
    return found


def _is_job_actor(actor: Mapping[str, Any]) -> bool:
    """Return whether an actor is alive, and not the supervisor that Ray adds to each job."""
    return actor["state"] in LIVING_STATES and actor.get("class_name") != SUPERVISOR


def _map_job_ids(answer: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the fedsim job's id for each job number of Ray."""
    owners = {}
    for job in answer:
        given = job.get("submission_id") or (job.get("metadata") or {}).get(SUBMISSION_KEY)
        ours = SUBMISSION.fullmatch(given or "")
        if ours and job.get("job_id"):
            owners[job["job_id"]] = ours[1]
    return owners


def _list_bundles(groups: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str, Mapping[str, float]]]:
    """Yield Ray's job number, the node and the resources of each reserved bundle."""
    for group in groups:
        if group["state"] in ("CREATED", "RESCHEDULING"):
            for bundle in group["bundles"]:
                if bundle.get("node_id"):
                    yield group["creator_job_id"], bundle["node_id"], bundle["unit_resources"]


def _list_free_actors(actors: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str, Mapping[str, float]]]:
    """Yield the resources of actors outside placement groups; actors inside use their group's bundle."""
    for actor in actors:
        if actor["state"] == "ALIVE" and not actor.get("placement_group_id"):
            yield actor["job_id"], actor["node_id"], actor.get("required_resources") or {}


def _make_node_state(
    node: Mapping[str, Any], reserved: ReservedResources, usage: NodeUsage | None
) -> NodeState:
    total = node.get("resources_total") or {}
    cpus, gpus = (_make_share(total.get(kind, 0.0), reserved.get(kind, 0.0)) for kind in KINDS)
    head = bool(node.get("is_head_node"))
    return NodeState(
        id=node["node_id"], address=node["node_ip"], head=head, cpus=cpus, gpus=gpus, usage=usage
    )


def _make_share(total: float, reserved: float) -> Share:
    # Ray counts in steps of 0.0001; sums of floats have small errors.
    return Share(total=total, free=max(0.0, round(total - reserved, 4)))


def _sum_shares(shares: Iterable[Share]) -> Share:
    both = [(share.total, share.free) for share in shares]
    return Share(total=sum(total for total, _ in both), free=round(sum(free for _, free in both), 4))


def _list_job_actors(
    actors: Iterable[Mapping[str, Any]], owners: Mapping[str, str], reserved: Mapping[str, ReservedResources]
) -> list[JobActors]:
    mine: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for actor in actors:
        mine[owners.get(actor["job_id"], "")].append(actor)
    return [
        JobActors(
            job_id=job_id,
            actors=len(mine[job_id]),
            waiting=sum(actor["state"] != "ALIVE" for actor in mine[job_id]),
            cpus=round(reserved.get(job_id, ReservedResources()).get("CPU", 0.0), 4),
            gpus=round(reserved.get(job_id, ReservedResources()).get("GPU", 0.0), 4),
            nodes=sorted({actor["node_id"] for actor in mine[job_id] if actor.get("node_id")}),
        )
        for job_id in sorted(mine.keys() | reserved.keys())
    ]
