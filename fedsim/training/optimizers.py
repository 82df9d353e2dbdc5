"""Optimizers: SGD for the local steps of clients, Adam for the models that the server trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.core import Context

MOMENTS = (0.9, 0.999)
"""Adam's two decay rates."""


class Adam:
    """Adam optimizer that changes its weights in place.

    Args:
        weights: the weights to train.
        moments: the first and the second moments, in the order of the weights; changed in place.
        lr: learning rate.
        weight_decay: this factor times the weights is added to the gradients.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        *,
        lr: float,
        weight_decay: float = 0.0,
    ) -> None:
        self.weights, self.lr, self.weight_decay = list(weights), lr, weight_decay
        self.first, self.second = (list(each) for each in moments)

    @torch.no_grad()
    def __call__(self, gradients: list[Tensor], step: int) -> None:
        """Make one step; `step` counts from 1 since the moments were zero."""
        one, two = MOMENTS
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, self.weights, alpha=self.weight_decay))
        torch._foreach_lerp_(self.first, gradients, 1 - one)
        torch._foreach_mul_(self.second, two)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - two)
        size = torch._foreach_sqrt(self.second)
        torch._foreach_div_(size, (1 - two**step) ** 0.5)
        torch._foreach_add_(size, 1e-8)
        torch._foreach_addcdiv_(self.weights, self.first, size, -self.lr / (1 - one**step))


class SgdUpdate:
    """SGD with the settings of `ctx.local`, in place; momentum starts at zero in each round.

    Args:
        ctx: the round.
    """

    def __init__(self, ctx: Context) -> None:
        self.local, self.step = ctx.local, 0
        self.velocity: list[Tensor] | None = None

    def __call__(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step: change the weights in place."""
        local = self.local
        if not weights:
            return
        if local.weight_decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=local.weight_decay))
        if local.momentum:
            if self.velocity is None:
                self.velocity = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(self.velocity, local.momentum)
                torch._foreach_add_(self.velocity, gradients)
            gradients = self.velocity
        torch._foreach_add_(weights, gradients, alpha=-local.lr_at(self.step))
        self.step += 1

    def keep_first(self, clients: int) -> None:
        """Keep only the first clients of stacked weights."""
        if self.velocity is not None:
            self.velocity = [velocity[:clients] for velocity in self.velocity]
