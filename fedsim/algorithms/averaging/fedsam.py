"""Generalized Federated Learning via Sharpness Aware Minimization.

Qu, Li, Duan, Liu, Tang, Lu, ICML 2022, arXiv:2206.02618. Also: Caldarola, Caputo, Ciccone, Improving
Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022, arXiv:2203.11834.

Idea: clients train by sharpness-aware minimization (SAM): each step descends the gradient at the worst nearby
weights, which leads to flat minima.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

A local step on a batch b is (Algorithm 1 of Qu et al.)

    g = grad f(w; b),        w <- w - lr grad f(w + rho g / |g|; b),

where the norm is over all weights that train and the point w + rho g / |g| counts as a constant.

Deviations: the paper counts clients equally and has a server rate; fedsim weighs clients by examples, and
has none. The optimizer of the local training makes the steps. g has no weight decay and is not clipped.
Statistics of normalisation layers follow the passes at w. Dropout draws new numbers in the second pass. The
paper's MoFedSAM is left out. The papers tune rho; the default is that of SAM (Foret et al., ICLR 2021).

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.core import Batch, ClientTask, Context, Effort
from fedsim.models.net import Params
from fedsim.training.trained_keys import list_moving_keys

NO_NORM = 1e-12
"""Added to |g|, so that a gradient of 0 moves nothing."""


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """FedAvg whose clients train by sharpness-aware minimization; `rho: 0` is FedAvg.

    Attributes:
        rho: distance between the weights and the point of the second gradient, >= 0.
    """

    purposes: ClassVar[tuple[str, ...]] = ("generalisation", "label-skew")
    further_example_use: ClassVar[str] = "a second gradient of each batch"

    rho: Annotated[float, Range(minimum=0)] = 0.05

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The parent's loss at w + rho g / |g|; its gradient by `params` is the gradient at this point."""
        usual = super().loss
        if not self.rho:
            return usual(ctx, task, params, batch)
        moving = list_moving_keys(ctx, params, self.trainable_keys(ctx, task.broadcast))

        def loss_of_weights(weights: Params) -> Tensor:
            return usual(ctx, task, {**params, **weights}, batch)

        with torch.no_grad():
            slopes = grad(loss_of_weights)({key: params[key] for key in moving})
            length = self.rho / (tree.dot(slopes, slopes).sqrt() + NO_NORM)
        statistics = {key: value.clone() for key, value in tree.drop(params, ctx.net.parameters).items()}
        shifted = {key: params[key] + length * slopes[key] for key in moving}
        return usual(ctx, task, {**params, **statistics, **shifted}, batch)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Two gradients for each step; the second one moves the model."""
        kinds = super().count_effort(ctx, state, steps)
        if not self.rho:
            return kinds
        return tuple(kind._replace(steps=2 * kind.steps, update_steps=kind.steps) for kind in kinds)
