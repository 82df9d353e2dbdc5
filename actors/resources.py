"""The number of client actors that fit on a cluster, with fractional GPUs; errors show the arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any, Literal

from fedsim.errors import DoesNotFit

CUDA_CONTEXT_BYTES = 512 << 20
"""GPU memory that CUDA itself takes in each process, outside of torch's allocator and its cap; about."""

ROUNDING = 1e-6
"""Tolerance for sums of floats: 0.1 + 0.2 must not cost an actor. Ray counts in steps of 0.0001."""


@dataclass(frozen=True)
class ClusterNode:
    """The resources of one node of the cluster.

    Attributes:
        name: the node's address.
        cpus, gpus: logical resources.
        memory: bytes for actors and for the data that they share; 0 if unknown.
        id: Ray's id of the node.
        head: whether the node is the head, which runs the coordinators.
        server_gpus: the share of one of its GPUs that the coordinator has.
    """

    name: str
    cpus: float
    gpus: float
    memory: float = 0.0
    id: str = ""
    head: bool = False
    server_gpus: float = 0.0

    def count_fitting_actors(self, cpus: float, gpus: float) -> int:
        """Count the actors of this size that fit on the node.

        A fraction of a GPU is a fraction of one physical GPU: the remainders of two GPUs cannot be added up.
        Three actors of 0.3 GPU fit on one GPU, and six on two.
        """
        by_cpu = floor(self.cpus / cpus + ROUNDING) if cpus else None
        by_gpu = None
        if gpus:
            whole = floor(self.gpus + ROUNDING)
            unshared = whole - (self.server_gpus > 0)
            if gpus <= 1:
                by_gpu = unshared * floor(1 / gpus + ROUNDING)
                by_gpu += floor((1 - self.server_gpus) / gpus + ROUNDING) if self.server_gpus else 0
            else:
                by_gpu = floor(unshared / gpus + ROUNDING)
        limits = [limit for limit in (by_cpu, by_gpu) if limit is not None]
        return min(limits) if limits else 0

    def __str__(self) -> str:
        less = f", {_format_number(self.server_gpus)} of it the server's" if self.server_gpus else ""
        return f"{self.name} has {_format_number(self.cpus)} CPU and {_format_number(self.gpus)} GPU{less}"


@dataclass(frozen=True)
class Placement:
    """The number and the size of a run's actors.

    Attributes:
        workers: the number of client actors.
        cpus, gpus: of each client actor.
        server_gpus: the coordinator's share of a GPU.
    """

    workers: int
    cpus: float
    gpus: float
    server_gpus: float = 0.0

    def to_ray_bundle(self) -> dict[str, float]:
        """Return the resources of one actor by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}


def parse_ray_nodes(nodes: Iterable[Mapping[str, Any]]) -> list[ClusterNode]:
    """Return the living nodes of the answer of `ray.nodes()`."""
    return [
        ClusterNode(
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            # At its start Ray divides the free memory into these two.
            node["Resources"].get("memory", 0.0) + node["Resources"].get("object_store_memory", 0.0),
            node["NodeID"],
            "node:__internal_head__" in node["Resources"],
        )
        for node in nodes
        if node["Alive"]
    ]


def reserve_server_gpu(nodes: Sequence[ClusterNode], share: float) -> Sequence[ClusterNode]:
    """Return the nodes with this share of one of the head's GPUs reserved for the coordinator.

    Raises:
        DoesNotFit: if the head has no GPU.
    """
    if not share:
        return nodes
    head = next((node for node in nodes if node.head), nodes[0] if nodes else None)
    if head is None or head.gpus < 1:
        raise DoesNotFit(
            f"the server asks for {_format_number(share)} GPU, and {head or 'no node is alive'}",
            "set resources.server_gpus to 0: the server then trains on its CPU",
            "resources.server_gpus",
            share,
        )
    return [replace(node, server_gpus=share) if node is head else node for node in nodes]


def count_actors_in_memory(node: ClusterNode, each: float, shared: float) -> int | None:
    """Count the actors that the memory of a node holds; None if the node's memory is unknown.

    Args:
        node: with its memory.
        each: private bytes of an actor.
        shared: bytes of the data that all actors of a node share.
    """
    return max(0, floor((node.memory - shared) / each)) if node.memory else None


def check_memory(asked: Sequence[tuple[ClusterNode, int]], each: float, shared: float) -> None:
    """Check that the memory of each node holds its actors.

    Args:
        asked: the nodes, each with its number of actors.
        each: private bytes of an actor.
        shared: bytes of the data that all actors of a node share.

    Raises:
        DoesNotFit: if a node's memory is too small; the message holds the arithmetic.
    """
    limits = [count_actors_in_memory(node, each, shared) for node, _ in asked]
    for (node, workers), fit in zip(asked, limits, strict=True):
        if fit is not None and workers > fit:
            need = workers * each + shared
            # Ray spreads the actors evenly, so the node with the least memory decides.
            total = min(limit for limit in limits if limit is not None) * len(asked)
            raise DoesNotFit(
                f"{workers} worker{'s' * (workers != 1)} x {_format_gigabytes(each)} and "
                f"{_format_gigabytes(shared)} of shared data make {_format_gigabytes(need)}; {node.name} has "
                f"{_format_gigabytes(node.memory)} of memory: {fit} fit",
                f"set resources.workers to {total} or fewer"
                if total
                else "use a smaller model, a smaller local.batch_size or less data (data.limit)",
                value=workers,
            )


def _format_gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def place_workers(
    workers: int | Literal["auto"],
    cpus: float,
    gpus: float,
    nodes: Sequence[ClusterNode],
    most: int | None = None,
) -> Placement:
    """Choose the number of client actors.

    Args:
        workers: the number that the spec asks for; "auto" for as many as fit.
        cpus: of each actor.
        gpus: of each actor: a fraction of one GPU, or a whole number.
        nodes: the cluster.
        most: with "auto", the largest number (a cohort of 5 cannot use 8 actors).

    Raises:
        DoesNotFit: if the empty cluster cannot hold the actors; the message holds the arithmetic.
    """
    each = f"{_format_number(cpus)} CPU" + (f" and {_format_number(gpus)} GPU" if gpus else "")
    per_node = [node.count_fitting_actors(cpus, gpus) for node in nodes]
    capacity = sum(per_node)
    server = max((node.server_gpus for node in nodes), default=0.0)
    asked = 1 if workers == "auto" else workers
    if asked > capacity:
        there = "; ".join(f"{node}: {fit} fit" for node, fit in zip(nodes, per_node, strict=True))
        raise DoesNotFit(
            f"{asked} worker{'s' * (asked != 1)} x {each} asked, {capacity} fit "
            f"({there or 'no node is alive'})",
            _make_hint(capacity, gpus, nodes),
            value=workers,
        )
    if workers == "auto":
        asked = min(capacity, most) if most else capacity
    return Placement(asked, cpus, gpus, server)


def _make_hint(capacity: int, gpus: float, nodes: Sequence[ClusterNode]) -> str:
    if capacity:
        smaller = "make resources.cpus_per_worker or gpus_per_worker smaller"
        return f"set resources.workers to {capacity} or fewer, or {smaller}"
    if gpus and not any(node.gpus for node in nodes):
        return "no node has a GPU: set resources.gpus_per_worker to 0"
    return "make resources.cpus_per_worker or resources.gpus_per_worker smaller, or add nodes"


def _format_number(amount: float) -> str:
    return f"{amount:g}"
