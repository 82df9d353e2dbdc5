"""Personalized Federated Learning with Moreau Envelopes.

Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848.

Idea: a client's own model may leave the shared one, at a price for the distance; the shared model follows
the clients' own ones.

Wire:
    down    params    the shared model w
    up      params    the client's w, MEAN
    keeps   own       theta, its own model as the last inner step left it; w before the first visit
    server  params

On every batch, K inner steps at rate `lr_p` on

    f(theta; batch) + lambda/2 |theta - w|^2,

then w <- w - eta lambda (w - theta) with eta the rate of the local training. Both begin a round at the w that
came down, and theta goes on from batch to batch. The server moves `beta` of the way to the mean.

Deviations: only the clients of the cohort train, where the authors' code has all of them train and averages
the cohort. Models are averaged by numbers of examples. Inner steps have the momentum and weight decay of the
local training, begun anew on every batch. Running statistics are those of the inner steps.

Reference result: see docs/results/ace-pfl.md.
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
"""Where the instruction has the model that theta is held to."""


@dataclass(frozen=True, kw_only=True)
class PFedMe(FedAvg, PersonalModels):
    """Own models tied to a shared one, which follows them.

    Attributes:
        lambda_prox: price of the distance, above 0.
        inner_steps: steps of the personal model on each batch, K.
        lr_p: the learning rate of the inner steps.
        beta: how far the server goes towards the mean.
    """

    lambda_prox: Positive = 15.0
    inner_steps: Count = 5
    lr_p: Positive = 0.01
    beta: Annotated[float, Range(above=0)] = 1.0

    stateful: ClassVar[bool] = True

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Batch by batch: theta by inner steps, then a step of w towards it."""
        centre = own = self.initial_params(ctx, task)
        moving = self.trainable_keys(ctx, task.broadcast)
        inner = replace(ctx, local=replace(ctx.local, lr=self.lr_p, lr_alpha=0.0))
        total = torch.zeros(())
        for step, batch in enumerate(task.batches):
            again = (batch,) * self.inner_steps
            held = task._replace(batches=again, instruction={**task.instruction, CENTRE: centre})
            fitted = self.train_locally(inner, held, own, moving)
            own, total = fitted.params, total + fitted.loss
            pull = ctx.local.lr_at(step) * self.lambda_prox
            # Running statistics are those of theta; they are not pulled anywhere.
            pulled = {key: centre[key] - pull * (centre[key] - own[key]) for key in moving}
            centre = {**own, **pulled}
        steps = len(task.batches)
        update = self.make_update(ctx, task, TrainedModel(centre, total / max(steps, 1), steps))
        return update._replace(client_state={PRIVATE_PARAMS: dict(own)}, model=own)

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy and the price of the distance to w."""
        moving = self.trainable_keys(ctx, task.broadcast)
        away = tree.sub(tree.select(params, moving), tree.select(task.instruction[CENTRE], moving))
        return super().loss(ctx, task, params, batch) + self.lambda_prox / 2 * tree.dot(away, away)

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The shared model."""
        params: Params = task.broadcast["params"]
        return params

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """Some of the way to the mean."""
        return super().server_update(ctx, params, step_towards(ctx, params, mean, self.beta), reduced)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """So many inner steps on every batch."""
        return (Effort(steps * self.inner_steps, ctx.net.parameters),)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """Its theta; the shared model before its first visit."""
        own: Mapping[str, Tensor] = task.client_state.get(PRIVATE_PARAMS) or self.initial_params(ctx, task)
        return own
