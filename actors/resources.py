"""How many client actors fit on a cluster, with fractional GPUs, and the arithmetic when they do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any, Literal

from fedsim.errors import DoesNotFit

CUDA_CONTEXT_BYTES = 512 << 20
"""What CUDA itself takes of a GPU in each process, outside of the allocator that a cap binds; about."""

ROUNDING = 1e-6
"""Ray counts resources in ten-thousandths; 0.1 + 0.2 must not cost an actor."""


@dataclass(frozen=True)
class Node:
    """What one node of the cluster has.

    Attributes:
        name: its address.
        cpus, gpus: logical resources.
        memory: bytes for actors and for the data that they share; 0 where nobody knows.
        id: Ray's own name of it.
        head: whether it is the one that the coordinator of a run is on.
        server: the share of one of its GPUs that the coordinator has.
    """

    name: str
    cpus: float
    gpus: float
    memory: float = 0.0
    id: str = ""
    head: bool = False
    server: float = 0.0

    def fits(self, cpus: float, gpus: float) -> int:
        """How many actors of this size fit here.

        A fraction of a GPU is a fraction of one physical GPU, so what is left over on each cannot be added
        up: three actors of 0.3 fit on one GPU, and six, not six and two thirds, on two.
        """
        by_cpu = floor(self.cpus / cpus + ROUNDING) if cpus else None
        by_gpu = None
        if gpus:
            whole = floor(self.gpus + ROUNDING)
            untouched = whole - (self.server > 0)
            if gpus <= 1:
                by_gpu = untouched * floor(1 / gpus + ROUNDING)
                by_gpu += floor((1 - self.server) / gpus + ROUNDING) if self.server else 0
            else:
                by_gpu = floor(untouched / gpus + ROUNDING)
        limits = [limit for limit in (by_cpu, by_gpu) if limit is not None]
        return min(limits) if limits else 0

    def __str__(self) -> str:
        less = f", {_number(self.server)} of it the server's" if self.server else ""
        return f"{self.name} has {_number(self.cpus)} CPU and {_number(self.gpus)} GPU{less}"


@dataclass(frozen=True)
class Placement:
    """The actors of a run.

    Attributes:
        workers: how many.
        cpus, gpus: of each.
        server: the coordinator's share of a GPU.
    """

    workers: int
    cpus: float
    gpus: float
    server: float = 0.0

    def bundle(self) -> dict[str, float]:
        """One actor's resources as Ray names them."""
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}


def cluster_nodes(nodes: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The living nodes out of what `ray.nodes()` says."""
    return [
        Node(
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            # Ray parts what is free when it starts into these two.
            node["Resources"].get("memory", 0.0) + node["Resources"].get("object_store_memory", 0.0),
            node["NodeID"],
            "node:__internal_head__" in node["Resources"],
        )
        for node in nodes
        if node["Alive"]
    ]


def beside_server(nodes: Sequence[Node], share: float) -> Sequence[Node]:
    """The nodes with this share of a GPU of the head's set aside for the coordinator.

    Raises:
        DoesNotFit: if the head has no GPU.
    """
    if not share:
        return nodes
    head = next((node for node in nodes if node.head), nodes[0] if nodes else None)
    if head is None or head.gpus < 1:
        raise DoesNotFit(
            f"the server asks for {_number(share)} GPU, and {head or 'no node is alive'}",
            "set resources.server_gpus to 0: then it trains on its CPU",
            "resources.server_gpus",
            share,
        )
    return [replace(node, server=share) if node is head else node for node in nodes]


def fit_in_memory(node: Node, each: float, shared: float) -> int | None:
    """How many actors the memory of a node holds; None where nobody knows how much it has.

    Args:
        node: with its memory.
        each: bytes that an actor has for itself.
        shared: bytes of the data that all actors of a node share.
    """
    return max(0, floor((node.memory - shared) / each)) if node.memory else None


def check_memory(asked: Sequence[tuple[Node, int]], each: float, shared: float) -> None:
    """Make sure that the memory of each node holds its actors.

    Args:
        asked: the nodes, each with its number of actors.
        each: bytes that an actor has for itself.
        shared: bytes of the data that all actors of a node share.

    Raises:
        DoesNotFit: if a node's memory is too small; the message holds the arithmetic.
    """
    room = [fit_in_memory(node, each, shared) for node, _ in asked]
    for (node, workers), fit in zip(asked, room, strict=True):
        if fit is not None and workers > fit:
            need = workers * each + shared
            # Actors are spread evenly, so the tightest node decides.
            total = min(r for r in room if r is not None) * len(asked)
            raise DoesNotFit(
                f"{workers} worker{'s' * (workers != 1)} x {_gigabytes(each)} and {_gigabytes(shared)} of "
                f"shared data make {_gigabytes(need)}; {node.name} has {_gigabytes(node.memory)} of memory: "
                f"{fit} fit",
                f"set resources.workers to {total} or fewer"
                if total
                else "use a smaller model, a smaller local.batch_size or less data (data.limit)",
                value=workers,
            )


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def place(
    workers: int | Literal["auto"], cpus: float, gpus: float, nodes: Sequence[Node], most: int | None = None
) -> Placement:
    """Decide how many actors there will be.

    Args:
        workers: how many are asked for; "auto" for as many as fit.
        cpus: of each actor.
        gpus: of each actor, a fraction of one GPU or a whole number.
        nodes: the cluster.
        most: with "auto", no more than this (a cohort of 5 cannot use 8 actors).

    Raises:
        DoesNotFit: if the cluster, empty, could not hold them; the message holds the arithmetic.
    """
    each = f"{_number(cpus)} CPU" + (f" and {_number(gpus)} GPU" if gpus else "")
    per_node = [node.fits(cpus, gpus) for node in nodes]
    room = sum(per_node)
    server = max((node.server for node in nodes), default=0.0)
    asked = 1 if workers == "auto" else workers
    if asked > room:
        there = "; ".join(f"{node}: {fit} fit" for node, fit in zip(nodes, per_node, strict=True))
        raise DoesNotFit(
            f"{asked} worker{'s' * (asked != 1)} x {each} asked, {room} fit ({there or 'no node is alive'})",
            _way_out(room, cpus, gpus, nodes),
            value=workers,
        )
    if workers == "auto":
        asked = min(room, most) if most else room
    return Placement(asked, cpus, gpus, server)


def _way_out(room: int, cpus: float, gpus: float, nodes: Sequence[Node]) -> str:
    if room:
        return f"set resources.workers to {room} or fewer, or make each smaller"
    if gpus and not any(node.gpus for node in nodes):
        return "no node has a GPU: set resources.gpus_per_worker to 0"
    return "make resources.cpus_per_worker or resources.gpus_per_worker smaller, or add nodes"


def _number(amount: float) -> str:
    return f"{amount:g}"
