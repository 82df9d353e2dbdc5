"""What travels between the clients and the server, what it adds up to, and what answers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.base.tree import Tree
from fedsim.base.wire import Traffic


class Reduction(StrEnum):
    """How one payload of the cohort's uploads combines on its way to the server."""

    MEAN = "mean"  # weighted by `Algorithm.weight`, taken in float64
    OVERALL_MEAN = "overall_mean"  # as MEAN, over the clients of all architectures together
    SUM = "sum"  # unweighted, taken in float64
    GATHER = "gather"  # one entry per client, in cohort order


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """What the server knows between rounds; an algorithm that keeps more subclasses it.

    Every field is a tree of tensors, a tensor, a number, a string, None, or a list, tuple or dict of these:
    such a state can be digested, checkpointed and compared.
    """

    params: Tree


class Progress(NamedTuple):
    """How far something is that the server does by itself."""

    activity: str
    done: int
    total: int


@dataclass(frozen=True)
class ReducedUpdates:
    """A cohort's reports, combined as the algorithm declared.

    Attributes:
        payloads: {payload: tree}; MEAN and SUM leaves are float64, GATHER is a list of trees in cohort
            order. With several architectures, MEAN and SUM are taken within each: {payload: {architecture:
            tree}}, without those that nobody came with. An OVERALL_MEAN is one tree, float64. What has no
            mean, as the weights of all that came sum to 0, is {}.
        clients: those that reported, in cohort order.
        weights: their weights, in the same order.
        num_examples: theirs, in the same order.
        metrics: the cohort's averages.
        traffic: bytes down and up.
        engine: how the pool did it.
        failed: those whose work was left out, in cohort order.
        memory_digest: of what all clients keep now; None unless the algorithm is stateful.
    """

    payloads: Mapping[str, Any]
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    num_examples: tuple[int, ...]
    metrics: Mapping[str, float]
    traffic: Traffic
    engine: Mapping[str, Any] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    memory_digest: str | None = None

    def __getitem__(self, payload: str) -> Any:
        return self.payloads[payload]


class Score(NamedTuple):
    """How one deployed model does on one part of the test set: sums, so that parts add up."""

    correct: int
    loss: float
    examples: int


class Survey(NamedTuple):
    """What clients answered, in the order asked, and what asking cost."""

    losses: NDArray[np.float64]
    traffic: Traffic
