"""Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.

Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948. Here: its first-order variant, Per-FedAvg (FO).

Idea: the server trains a model that becomes good for each client after one gradient step on the client's own
data.

Wire:
    down    params    the meta-model
    up      params    the trained meta-model, MEAN
    keeps   nothing
    server  params

A meta-step takes two batches b1 and b2, one after another in the client's order:

    w' = w - alpha grad f(w; b1)
    w  <- w - beta grad f(w'; b2)

A round makes half as many meta-steps as it has batches, also across its passes. A last batch without a
partner serves as both b1 and b2. For its own use a client takes one step at rate alpha on one batch of its
own.

Deviations: the Hessian of the exact algorithm is left out (FO). The outer step has the optimizer of
the local training. Models are averaged by numbers of examples.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import fine_tune
from fedsim.base.parameters import Positive
from fedsim.base.tree import Tree
from fedsim.core import Batch, Batches, ClientTask, ClientUpdate, Context, Effort, LocalTraining
from fedsim.core.capabilities import PersonalModels
from fedsim.models.net import Params
from fedsim.training.losses import supervised_loss
from fedsim.training.trained_keys import list_moving_keys


class PairedBatches:
    """A client task's batches in pairs: the second of each pair, with the first one in its noise, as `first`.

    Args:
        batches: in order; a last batch without a partner is paired with itself.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return -(-len(self.batches) // 2)

    def __getitem__(self, step: int) -> Batch:
        first = self.batches[2 * step]
        second = self.batches[2 * step + 1] if 2 * step + 1 < len(self.batches) else first
        return second._replace(noise={**second.noise, "first": first})

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(len(self)))


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg, PersonalModels):
    """FedAvg of meta-models, which one step on a client's own data turns into personal models.

    Attributes:
        alpha: rate of the inner step, and of the step that makes the personal model.
        beta: rate of the outer step, the same in every step and round; null for that of the local training,
            with its schedule and decays.
    """

    alpha: Positive = 0.01
    beta: Positive | None = None

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "a gradient of each batch twice"

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Meta-steps on pairs of batches."""
        local = ctx.local if self.beta is None else ctx.local.with_constant_rate(self.beta)
        return super().train_client(
            replace(ctx, local=local), task._replace(batches=PairedBatches(task.batches))
        )

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The second batch's cross-entropy after a step on the first batch.

        The step counts as a constant: the gradient with respect to `params` is the gradient at the adapted
        weights (first order).
        """
        first: Batch = batch.noise["first"]
        moving = list_moving_keys(ctx, params, self.trainable_keys(ctx, task.broadcast))

        def first_batch_loss(weights: Params) -> Tensor:
            return supervised_loss(ctx, ctx.net({**params, **weights}, first.x), first)

        with torch.no_grad():
            slopes = grad(first_batch_loss)({key: params[key] for key in moving})
        adapted = {**params, **{key: params[key] - self.alpha * slopes[key] for key in moving}}
        return supervised_loss(ctx, ctx.net(adapted, batch.x), batch)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Two passes for each meta-step; the second moves the model. A last single batch makes both."""
        pairs = -(-steps // 2)
        kinds = super().count_effort(ctx, state, steps)
        return tuple(kind._replace(steps=2 * pairs, update_steps=pairs) for kind in kinds)

    def plan_tuning(self, ctx: Context) -> LocalTraining:
        """One plain step on one batch, at the inner rate."""
        return LocalTraining(steps=1, batch_size=ctx.local.batch_size, lr=self.alpha)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The meta-model after the tuning step."""
        return fine_tune(ctx, task, self.initial_params(ctx, task))
