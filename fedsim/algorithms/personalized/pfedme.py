"""Personalized Federated Learning with Moreau Envelopes.

Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848.

Idea: a client's personal model may differ from the shared model, with a penalty on the distance; the shared
model follows the personal models.

Wire:
    down    params    the shared model w
    up      params    the client's w, MEAN
    keeps   own       theta, its personal model after the last inner step; w before the first round
    server  params

On every batch, K inner steps at rate `lr_p` on

    f(theta; batch) + lambda/2 |theta - w|^2,

then w <- w - eta lambda (w - theta), where eta is the rate of the local training. Both start a round at the
broadcast w, and theta continues from batch to batch. The server moves the share `beta` of the way to the
mean.

Deviations: only the clients of the cohort train; in the authors' code all clients train and the cohort is
averaged. Models are averaged by numbers of examples. Inner steps have the optimizer of the local
training, started anew on every batch. Running statistics are those of the inner steps.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import PRIVATE_PARAMS, FedAvg, step_towards
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort, ReducedUpdates
from fedsim.core.capabilities import PersonalModels
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel

CENTRE = "centre"
"""Key of the instruction that holds w, the centre of theta's penalty."""


@dataclass(frozen=True, kw_only=True)
class PFedMe(FedAvg, PersonalModels):
    """Personal models near a shared one, which follows them.

    Attributes:
        lambda_prox: weight of the distance between the personal and the shared model, above 0.
        inner_steps: steps of the personal model on each batch, K.
        lr_p: learning rate of the inner steps.
        beta: share of the way to the mean that the server moves; may exceed 1.
    """

    lambda_prox: Positive = 15.0
    inner_steps: Count = 5
    lr_p: Positive = 0.01
    beta: Annotated[float, Range(above=0)] = 1.0

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "several local loops"
    stateful: ClassVar[bool] = True

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """For each batch: inner steps of theta, then a step of w towards theta."""
        centre = own = self.initial_params(ctx, task)
        moving = self.trainable_keys(ctx, task.broadcast)
        inner = replace(ctx, local=ctx.local.with_constant_rate(self.lr_p))
        total = torch.zeros(())
        for step, batch in enumerate(task.batches):
            again = (batch,) * self.inner_steps
            held = task._replace(batches=again, instruction={**task.instruction, CENTRE: centre})
            fitted = self.train_locally(inner, held, own, moving)
            own, total = fitted.params, total + fitted.loss
            pull = ctx.local.lr_at(step) * self.lambda_prox
            # Only parameters move; running statistics are those of theta.
            pulled = {key: centre[key] - pull * (centre[key] - own[key]) for key in moving}
            centre = {**own, **pulled}
        steps = len(task.batches)
        update = self.make_update(ctx, task, TrainedModel(centre, total / max(steps, 1), steps))
        return update._replace(client_state={PRIVATE_PARAMS: dict(own)}, model=own)

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the penalty on the distance to w."""
        moving = self.trainable_keys(ctx, task.broadcast)
        away = tree.difference(params, task.instruction[CENTRE], moving)
        return super().loss(ctx, task, params, batch) + self.lambda_prox / 2 * tree.dot(away, away)

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The shared model."""
        params: Params = task.broadcast["params"]
        return params

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """A step to the mean, the share `beta` of the way."""
        return super().server_update(ctx, params, step_towards(ctx, params, mean, self.beta), reduced)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """K inner steps on every batch."""
        return (Effort(steps * self.inner_steps, ctx.net.parameters),)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's theta; the shared model before its first round."""
        own: Mapping[str, Tensor] = task.client_state.get(PRIVATE_PARAMS) or self.initial_params(ctx, task)
        return own
