"""Federated Learning with Label Distribution Skew via Logits Calibration.

Zhang, Li, Li, Xu, Wu, Ding, Wu, ICML 2022, arXiv:2209.00189.

Idea: a client lowers the logits of its rare classes while it trains, so that it needs larger margins for them
and does not unlearn them.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

With n_c the client's number of examples of class c, the local loss is the cross-entropy of the logits

    f_c(x) - tau n_c^(-1/4).

Deviations: the softmax is over all classes, so that `tau: 0` is the cross-entropy. A class without examples
counts as 1e-8 examples, which lowers its logit by 100 tau, as in public code; the paper leaves it open.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Range
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params
from fedsim.training.losses import supervised_loss

LEAST_COUNT = 1e-8
"""The number of examples of a class that a client does not hold."""


@dataclass(frozen=True, kw_only=True)
class FedLC(FedAvg):
    """FedAvg whose clients calibrate their logits by their class counts; `tau: 0` is FedAvg.

    Attributes:
        tau: weight of the calibration, >= 0.
    """

    purposes: ClassVar[tuple[str, ...]] = ("label-skew",)
    further_example_use: ClassVar[str] = "label counts"

    tau: Annotated[float, Range(minimum=0)] = 1.0

    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy of the calibrated logits."""
        logits = ctx.net(params, batch.x)
        return supervised_loss(ctx, logits - self.tau * label_margins(task.label_counts), batch)


def label_margins(label_counts: Tensor) -> Tensor:
    """Return n_c^(-1/4) of each class, `[classes]`, from the client's examples of each class."""
    return label_counts.clamp(min=LEAST_COUNT) ** -0.25
