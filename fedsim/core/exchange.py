"""Exchange: how payloads are reduced on their way to the server, and the state that the server keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fedsim.base.costs import Traffic
from fedsim.base.tree import Tree


class Reduction(StrEnum):
    """How the payloads of one name, of the whole cohort, become one on their way to the server."""

    MEAN = "mean"  # weighted by `Algorithm.weigh_client`, computed in float64
    OVERALL_MEAN = "overall_mean"  # as MEAN, over the clients of all architectures together
    SUM = "sum"  # unweighted, computed in float64
    GATHER = "gather"  # one entry per client, in cohort order


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The state of the server between rounds; an algorithm that keeps more defines a subclass.

    Every field is a tree of tensors, a tensor, a number, a string, None, or a list, tuple or dict of these:
    such a state can be digested, checkpointed and compared.
    """

    params: Tree


@dataclass(frozen=True)
class ReducedUpdates:
    """The updates of a cohort, reduced as `Algorithm.uploads` says.

    Attributes:
        payloads: {payload name: reduced payload}, by reduction:
            MEAN, SUM: a float64 tree. With several architectures {"0": tree, "2": tree}, by architecture,
                without those of which no client came.
            OVERALL_MEAN: a float64 tree, also with several architectures.
            GATHER: a list of trees, one for each client, in cohort order.
            A MEAN or OVERALL_MEAN whose weights sum to 0 is {}.
        clients: the clients that finished, in cohort order.
        weights, num_examples: of these clients, in the same order.
        metrics: the mean of each metric over the clients that report it, weighted by their examples; NaN if
            they hold none.
        traffic: bytes down and up.
        engine: how the pool ran the round.
        failed: the clients whose updates were left out, in cohort order.
        left_out: how many more clients the server asked: their devices were late, vanished, or not needed.
        memory_digest: of all client states; None unless the algorithm is stateful.
        client_bytes: bytes down to and up from each of `clients`, in the same order.
        metric_examples: {metric: examples of the clients that report it}.
    """

    payloads: Mapping[str, Any]
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    num_examples: tuple[int, ...]
    metrics: Mapping[str, float]
    traffic: Traffic
    engine: Mapping[str, Any] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    left_out: int = 0
    memory_digest: str | None = None
    client_bytes: tuple[tuple[int, int], ...] = ()
    metric_examples: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, payload: str) -> Any:
        return self.payloads[payload]
