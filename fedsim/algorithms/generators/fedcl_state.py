"""The server state of FedCL."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsim.algorithms.generators.fedgen import FedGenState
from fedsim.base.tree import Tree
from fedsim.techniques.learning_phases import PhaseState


@dataclass(frozen=True, kw_only=True)
class FedCLState(FedGenState):
    """The server state.

    Attributes:
        sums: over the last models of all clients, or of the frozen ones; {} with `average: cohort`.
        counts: examples of each class, over all clients that took part, float64 `[classes]`.
        counted: whether a client is in `counts`, bool `[N]`; all false without a generator.
        draws: numbers drawn from each client's last mixture, float64 `[N, draws]`; NaN for a client without a
            mixture. The whole tensor is copied and sorted in every round.
        standing: the phase, and the clients that have finished it.
    """

    sums: Tree
    counts: Tensor
    counted: Tensor
    draws: Tensor
    standing: PhaseState


@dataclass(frozen=True, kw_only=True)
class RunningTauState(FedCLState):
    """The server state with `tau: running`.

    Attributes:
        tau: the exponential mean of the cohorts' mean losses, in nats.
    """

    tau: float
