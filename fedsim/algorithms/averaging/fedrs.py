"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.

Li, Zhan, KDD 2021, doi:10.1145/3447548.3467254.

Idea: a client pushes the classifier's rows of classes that it does not hold in arbitrary directions; smaller
logits of these classes in the softmax slow this down.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

The local loss is the cross-entropy of the logits a_c f_c(x), where a_c is 1 for a class of which the client
holds examples, and `alpha` for all others.

Deviations: the whole logit is scaled, with its bias; the authors' classifier has none. The authors' code
moves a_c from `alpha` to 1 with n_c / max n, and further towards 1 in every local step; here a_c has two
values, as in the paper.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Share
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params
from fedsim.training.losses import supervised_loss


@dataclass(frozen=True, kw_only=True)
class FedRS(FedAvg):
    """FedAvg whose clients scale down the logits of classes that they lack; `alpha: 1` is FedAvg.

    Attributes:
        alpha: factor of the logits of missing classes.
    """

    purposes: ClassVar[tuple[str, ...]] = ("label-skew",)
    further_example_use: ClassVar[str] = "label counts"

    alpha: Share = 0.5

    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy of the restricted softmax."""
        held = (task.label_counts > 0).to(task.label_counts.dtype)
        scales = self.alpha + (1 - self.alpha) * held
        return supervised_loss(ctx, ctx.net(params, batch.x) * scales, batch)
