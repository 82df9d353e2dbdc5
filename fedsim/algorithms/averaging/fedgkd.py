"""Local-Global Knowledge Distillation in Heterogeneous Federated Learning with Non-IID Data.

Yao, Pan, Dai, Wan, Ding, Jin, Xu, Sun, 2021, arXiv:2107.00051.

Idea: the mean of the last global models teaches the clients' models, so that what was known before is not
forgotten over one client's data.

Wire:
    down    params    the global model
            teacher   the mean of the last `buffer` models that the server averaged; nothing while that is the
                      global model itself, so in the first two rounds and with buffer 1
    up      params    the trained model, MEAN
    keeps   nothing
    server  params, and the last `buffer` of them that were averaged

The local loss has (gamma / 2) temperature^2 KL(teacher || student) besides, at this temperature.

Deviations: the term begins with the second round, since the first model is an untrained one; for the same
reason it is never among those that make the teacher. The variant that weights each of the last models by its
loss on validation data is left out.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context, Effort, ReducedUpdates, ServerState
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.models.net import Params
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.local_loop import cross_entropy


@dataclass(frozen=True, kw_only=True)
class FedGKDState(ServerState):
    """The server's model and its last ones.

    Attributes:
        recent: the last models, oldest first, the present one included; without the first, untrained one.
    """

    recent: list[Tree]


@dataclass(frozen=True, kw_only=True)
class FedGKD(FedAvg, PersonalBroadcast):
    """FedAvg whose clients are taught by the mean of the last global models; gamma 0 is FedAvg.

    Attributes:
        gamma: weight of the distillation, >= 0.
        buffer: how many of the last global models are averaged, M.
        temperature: of the distillation.
    """

    gamma: Annotated[float, Range(minimum=0)] = 0.2
    buffer: Count = 5
    temperature: Positive = 1.0

    def init_server_state(self, ctx: Context) -> FedGKDState:
        """The parent's."""
        return FedGKDState(params=super().init_server_state(ctx).params, recent=[])

    def has_teacher(self, ctx: Context) -> bool:
        """Whether there is a teacher in this round."""
        return self.gamma > 0 and ctx.round > 0

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model, and its teacher unless that is the model itself."""
        sent = super().broadcast(ctx, state)
        if not self.has_teacher(ctx) or self.buffer == 1 or ctx.round == 1:
            return sent
        # A plan asks what later rounds send while nobody has come yet.
        recent = state.recent or [state.params]
        held = [tree.select(ctx.select_architecture(model), sent["params"]) for model in recent]
        mean = tree.map(lambda *parts: torch.stack(parts).double().mean(0), *held)
        return {**sent, "teacher": tree.cast_like(mean, held[0])}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model alone."""
        return super().broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedGKDState:
        """The parent's, and the new model among the last."""
        params = super().aggregate(ctx, state, reduced).params
        return FedGKDState(params=params, recent=[*state.recent, params][-self.buffer :])

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, and how far the student is from its teacher."""
        if not self.has_teacher(ctx):
            return super().loss(ctx, task, params, batch)
        logits = ctx.net(params, batch.x)
        with torch.no_grad(), ctx.net.evaluation_mode():
            taught = ctx.net(task.broadcast.get("teacher", task.broadcast["params"]), batch.x)
        far = kl_divergence(taught, logits, batch.mask, self.temperature, several_labels=batch.y.dim() == 2)
        return cross_entropy(logits, batch) + self.gamma / 2 * self.temperature**2 * far

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """A forward pass more where there is a teacher."""
        # Without the teacher in what comes down: it is asked for once for each size of client.
        moving = self.trainable_keys(ctx, super().broadcast(ctx, state))
        return (Effort(steps, moving, forwards=int(self.has_teacher(ctx))),)
