"""Adaptive Personalized Federated Learning.

Deng, Kamani, Mahdavi, 2020, arXiv:2003.13461.

Idea: a client's personal model is a mixture of the global model and a local model, and the local model learns
what the mixture lacks.

Wire:
    down    params    the global model w
    up      params    the trained global model, MEAN
    keeps   own       v, its local model, and with `adaptive` alpha; the received w and the given alpha before
                      its first round
    server  params

On every batch, both at once (Algorithm 1):

    w <- w - eta grad f(w),
    v <- v - eta grad_v f(m),        m = alpha v + (1 - alpha) w,

where w is a constant in m. With `adaptive`, alpha first makes one step on the round's first batch, by its
derivative <v - w, grad f(m)> at the rate eta, and is cut to [0, 1]. A client predicts by m, with the server's
latest w.

Deviations: the gradient of v has the factor alpha of the chain rule. Models are averaged by numbers of
examples. alpha makes its step before the first step of w, with w as received, in evaluation mode; in the
authors' code after it. That code also mixes predictions in place of weights, and adds 0.02 alpha to the
derivative. The optimizer of the local training moves w and v, and `local.clip_norm` limits the
norm of both gradients together. v begins at the w of the client's first round. Running statistics of m belong
to v, and are mixed like weights in the personal model.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import PRIVATE_PARAMS, FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Share
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import PersonalModels
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import supervised_loss

LOCAL_PREFIX = "local."
"""Prefix of the local model's keys, before the names of the net."""

MIXING = "mixing.alpha"
"""Key of alpha, a scalar, in a client's state."""


@dataclass(frozen=True, kw_only=True)
class APFL(FedAvg, PersonalModels):
    """FedAvg, and for each client a mixture of the global model and a local one.

    Attributes:
        alpha: share of the local model in the mixture; with `adaptive`, where it begins.
        adaptive: whether each client learns its own alpha.
    """

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "examples for the mixing weight"

    alpha: Share = 0.5
    adaptive: bool = False

    stateful: ClassVar[bool] = True

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The local model, and alpha if the client learns it."""
        return [*(LOCAL_PREFIX + key for key in ctx.net.keys), *([MIXING] if self.adaptive else [])]

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The parameters of both models; a block that is frozen in one is frozen in the other."""
        local = (LOCAL_PREFIX + key for key in ctx.net.parameters if key not in ctx.frozen)
        return [*ctx.net.parameters, *local]

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The global model, the local model and alpha."""
        params = super().initial_params(ctx, task)
        started = PRIVATE_PARAMS in task.client_state
        local = {} if started else {LOCAL_PREFIX + key: params[key] for key in ctx.net.keys}
        mixing = {MIXING: torch.tensor(self.alpha, device=task.device)} if self.adaptive else {}
        found = {**mixing, **params, **local}
        # Forward passes change running statistics in place, and the client state must not change.
        statistics = frozenset(ctx.net.keys).difference(ctx.net.parameters)
        return {
            key: value.clone() if key.removeprefix(LOCAL_PREFIX) in statistics else value
            for key, value in found.items()
        }

    def mix_models(self, ctx: Context, params: Params, keys: Collection[str]) -> Params:
        """The mixture alpha v + (1 - alpha) w over these keys; w is a constant."""
        alpha = params.get(MIXING, self.alpha)
        return {key: torch.lerp(params[key].detach(), params[LOCAL_PREFIX + key], alpha) for key in keys}

    def mixture_loss(self, ctx: Context, params: Params, batch: Batch) -> Tensor:
        """The loss of the mixture, with the running statistics of the local model."""
        local = {key: params[LOCAL_PREFIX + key] for key in ctx.net.keys}
        mixture = {**local, **self.mix_models(ctx, params, ctx.net.parameters)}
        return supervised_loss(ctx, ctx.net(mixture, batch.x), batch)

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The loss of the global model, plus that of the mixture."""
        return super().loss(ctx, task, params, batch) + self.mixture_loss(ctx, params, batch)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """A step of alpha if the client learns it, then the training of both models."""
        start = self.initial_params(ctx, task)
        if self.adaptive and len(task.batches):
            start = {**start, MIXING: self.learn_alpha(ctx, start, task.batches[0])}
        trained = self.train_locally(ctx, task, start, self.trainable_keys(ctx, task.broadcast))
        return self.collect_update(ctx, task, trained)

    def learn_alpha(self, ctx: Context, params: Params, batch: Batch) -> Tensor:
        """Alpha after a step on a batch, a scalar."""
        alpha = params[MIXING].detach().requires_grad_()
        with torch.enable_grad():
            value = self.mixture_loss(ctx, {**params, MIXING: alpha}, batch)
        (slope,) = torch.autograd.grad(value, [alpha])
        return (alpha.detach() - ctx.local.lr_at(0) * slope).clamp(0, 1)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The global model for the server; the local model and alpha for the client state."""
        update = super().make_update(ctx, task, trained)
        return update._replace(model=tree.drop(trained.params, self.private_keys(ctx)))

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Every step trains two models; alpha takes the gradient of one batch."""
        training = (Effort(steps, ctx.net.parameters),) * 2
        if not (self.adaptive and steps):
            return training
        return (Effort(1, ctx.net.parameters, update_steps=0), *training)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The mixture of the global and the client's local model; the global model before its first round."""
        return self.mix_models(ctx, self.initial_params(ctx, task), ctx.net.keys)
