"""Fair Resource Allocation in Federated Learning.

Li, Sanjabi, Beirami, Smith, ICLR 2020, arXiv:1905.10497.

Idea: clients with larger losses count more, so that the accuracies of the clients become more alike.

Wire:
    down    params   the global model
    up      params   the trained model, MEAN with the weights p_k F_k^q
            damping  d_k, by which the step is shortened, MEAN with the same weights
    keeps   nothing
    server  params

The objective of q-FFL is sum_k p_k F_k^(q+1) / (q + 1). F_k is the mean loss of the received model on the
examples of client k, and p_k its number of examples. With L = 1 / lr for plain SGD, D_k = L (w - w_k) and
h_k = q F_k^(q-1) |D_k|^2 + L F_k^q, the step of q-FedAvg (Algorithm 2) is

    w <- w - sum_k p_k F_k^q D_k / sum_k p_k h_k.

fedsim computes it as w + (m - w) / (1 + d). m is the mean of the models w_k and d that of
d_k = q L |w - w_k|^2 / F_k, both with the weights p_k F_k^q. The two forms are equal in exact arithmetic.
With q = 0, every weight is p_k and d is 0: the step is FedAvg's bit for bit.

Deviations: the paper draws clients with the probabilities p_k and counts them equally; fedsim draws them
uniformly, so that p_k is a weight. Its clients run plain SGD at a constant rate; with momentum or a changing
rate, 1 / L is the mean step of a client of average size, `LocalTraining.total_step_size`. A loss below 1e-10
counts as 1e-10; the authors' code adds 1e-10 to each loss. Statistics of normalisation layers become those of
m.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg, step_towards
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import measure_losses

SMALLEST_LOSS, LARGEST_LOSS = 1e-10, 1e10
"""The bounds of a loss, so that its powers are finite and above 0."""


@dataclass(frozen=True, kw_only=True)
class QFedAvg(FedAvg):
    """FedAvg whose clients count more if their loss is large; `q: 0` is FedAvg.

    Attributes:
        q: the power of the loss in a client's weight; a larger q makes the clients' losses more alike.
    """

    purposes: ClassVar[tuple[str, ...]] = ("fairness",)
    asynchronous: ClassVar[bool] = False
    further_example_use: ClassVar[str] = "losses of the received model"
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "damping": Reduction.MEAN}
    assumes_sgd: ClassVar[bool] = True

    q: Annotated[float, Range(minimum=0, maximum=20)] = 1.0

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The client's number of examples times F_k^q."""
        if not task.num_examples or not self.q:
            return float(task.num_examples)
        return float(task.num_examples * float(self._measure_loss(ctx, task)) ** self.q)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and the damping d_k."""
        update, moving = super().make_update(ctx, task, trained), ctx.net.parameters
        change = tree.difference(trained.params, task.broadcast["params"], moving)
        damping = {"d": torch.zeros((), device=task.device)}
        if self.q:
            factor = self.q / (_mean_step_size(ctx) * self._measure_loss(ctx, task))
            damping = {"d": (factor * tree.dot(change, change)).float()}
        return update._replace(upload={**update.upload, "damping": damping})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one forward pass over the examples for the loss."""
        usual = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps)) if self.q else usual

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """The step towards the clients' mean, divided by 1 + d."""
        # A robust rule or an attack can make d negative, which no honest client sends.
        damping = max(0.0, float(ctx.select_architecture(reduced["damping"])["d"]))
        return super().server_update(ctx, params, step_towards(ctx, params, mean, 1 / (1 + damping)), reduced)

    def _measure_loss(self, ctx: Context, task: ClientTask) -> Tensor:
        """F_k: the mean loss of the received model on the client's examples; at least 1e-10, also of none."""
        losses = measure_losses(ctx, task.broadcast["params"], task.examples).double()
        return (losses.sum() / max(len(losses), 1)).clamp(SMALLEST_LOSS, LARGEST_LOSS)


def _mean_step_size(ctx: Context) -> float:
    """1 / L, the same for all clients: the mean change of a weight in a step, of a gradient of -1."""
    local = ctx.usual_local
    if not local.momentum and local.has_constant_rate:
        return local.lr
    return local.total_step_size(ctx.usual_steps) / ctx.usual_steps
