"""Federated Optimization in Heterogeneous Networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, arXiv:1812.06127.

Idea: a quadratic term keeps every client near the global model, against the drift from unequal data and work.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

Deviations: the paper draws clients with the probabilities p_k and counts them equally; fedsim draws them
uniformly and weighs them by numbers of examples. Every client makes all of its local steps, unless a
deadline ends them. The reference is a snapshot of the broadcast model, never the live parameters, and
buffers are outside the term.

Reference result: see docs/results/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose clients pay mu/2 |w - w_global|^2 for their distance from the global model (Eq. 2).

    Attributes:
        mu: weight of the proximal term, >= 0; 0 is FedAvg.
    """

    mu: Annotated[float, Range(minimum=0)] = 0.01

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The parent's loss plus the proximal term over the trainable parameters."""
        base = super().loss(ctx, task, params, batch)
        moving = self.trainable_keys(ctx, task.broadcast)
        drift = tree.difference(params, task.broadcast["params"], moving)
        return base + self.mu / 2 * tree.dot(drift, drift)
