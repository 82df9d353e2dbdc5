"""Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.

Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022, arXiv:2106.03097.

Idea: a client keeps what the global model says of all classes but the example's own, so that it learns its
own classes without forgetting the others.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

The local loss is the cross-entropy plus beta KL(global || student), where both softmaxes are at the
temperature `tau` and over all classes but the true one.

Deviations: none; the divergence has no factor tau^2, as in the paper (public code multiplies by it, which is
the same at the default tau = 1). The global model predicts in evaluation
mode.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Positive, Range
from fedsim.core import Batch, ClientTask, Context, Effort
from fedsim.models.net import Params
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.losses import supervised_loss


@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """FedAvg whose clients keep the global model's view of the not-true classes; `beta: 0` is FedAvg.

    Attributes:
        beta: weight of the distillation, >= 0.
        tau: temperature of the distillation.
    """

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "distillation")

    beta: Annotated[float, Range(minimum=0)] = 1.0
    tau: Positive = 1.0

    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distance to the global model over the not-true classes."""
        if not self.beta:
            return super().loss(ctx, task, params, batch)
        logits = ctx.net(params, batch.x)
        with torch.no_grad(), ctx.net.evaluation_mode():
            teacher = drop_true_class(ctx.net(task.broadcast["params"], batch.x), batch.y)
        far = kl_divergence(teacher, drop_true_class(logits, batch.y), batch.mask, self.tau)
        return supervised_loss(ctx, logits, batch) + self.beta * far

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one more forward pass."""
        return tuple(
            kind._replace(forwards=1 if self.beta else 0) for kind in super().count_effort(ctx, state, steps)
        )


def drop_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits of all classes but the true one, `[batch, classes - 1]`.

    >>> drop_true_class(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([0, 1]))
    tensor([[2., 3.],
            [4., 6.]])
    """
    others = torch.arange(logits.shape[-1] - 1, device=logits.device)
    return logits.gather(-1, others + (others >= y.unsqueeze(-1)))
