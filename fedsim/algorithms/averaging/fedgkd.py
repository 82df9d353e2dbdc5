"""Local-Global Knowledge Distillation in Heterogeneous Federated Learning with Non-IID Data.

Yao, Pan, Dai, Wan, Ding, Jin, Xu, Sun, 2021, arXiv:2107.00051.

Idea: the mean of the last global models teaches the clients' models, to keep earlier knowledge while they
train on one client's data.

Wire:
    down    params    the global model
            teacher   the mean of the last `buffer` models that the server averaged; not sent if it equals the
                      global model, as in the first two rounds and with `buffer: 1`
    up      params    the trained model, MEAN
    keeps   nothing
    server  params, and the last `buffer` averaged models

The local loss is the cross-entropy plus (gamma / 2) temperature^2 KL(teacher || student) at this temperature.

Deviations: the KL term begins in the second round, because the initial model is untrained; for the same
reason the teacher never includes the initial model. The variant that weights each of the last models by its
loss on validation data is left out.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context, Effort, ReducedUpdates, ServerState
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Params
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class FedGKDState(ServerState):
    """The server's model and the last global models.

    Attributes:
        recent: the last `buffer` averaged models, the oldest first; the present model is the last one.
    """

    recent: list[Tree]


@dataclass(frozen=True, kw_only=True)
class FedGKD(FedAvg, PersonalBroadcast):
    """FedAvg whose clients learn from the mean of the last global models; `gamma: 0` is FedAvg.

    Attributes:
        gamma: weight of the distillation, >= 0.
        buffer: number of global models in the mean, M.
        temperature: temperature of the distillation.
    """

    gamma: Annotated[float, Range(minimum=0)] = 0.2
    buffer: Count = 5
    temperature: Positive = 1.0

    purposes: ClassVar[tuple[str, ...]] = ("client-drift", "distillation")
    asynchronous: ClassVar[bool] = False
    tasks: ClassVar = CLASS_TASKS

    def init_server_state(self, ctx: Context) -> FedGKDState:
        """The parent's state, without earlier models."""
        return FedGKDState(params=super().init_server_state(ctx).params, recent=[])

    def has_teacher(self, ctx: Context) -> bool:
        """Whether clients learn from a teacher in this round."""
        return self.gamma > 0 and ctx.round > 0

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model, and its teacher unless the teacher is the model itself."""
        sent = super().broadcast(ctx, state)
        if not self.has_teacher(ctx) or self.buffer == 1 or ctx.round == 1:
            return sent
        # A plan asks for the payloads of later rounds before the first round has run.
        recent = state.recent or [state.params]
        held = [tree.select(ctx.select_architecture(model), sent["params"]) for model in recent]
        mean = tree.map(lambda *parts: torch.stack(parts).double().mean(0), *held)
        return {**sent, "teacher": tree.cast_like(mean, held[0])}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model."""
        return super().broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedGKDState:
        """The parent's state, and the last models with the new one."""
        params = super().aggregate(ctx, state, reduced).params
        return FedGKDState(params=params, recent=[*state.recent, params][-self.buffer :])

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distance between student and teacher."""
        if not self.has_teacher(ctx):
            return super().loss(ctx, task, params, batch)
        logits = ctx.net(params, batch.x)
        with torch.no_grad(), ctx.net.evaluation_mode():
            teacher_logits = ctx.net(task.broadcast.get("teacher", task.broadcast["params"]), batch.x)
        far = kl_divergence(
            teacher_logits, logits, batch.mask, self.temperature, several_labels=batch.y.dim() == 2
        )
        return cross_entropy(logits, batch) + self.gamma / 2 * self.temperature**2 * far

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one more forward pass if there is a teacher."""
        # The parent's payloads alone: the teacher is slow to make, and this runs once for each client size.
        moving = self.trainable_keys(ctx, super().broadcast(ctx, state))
        return (Effort(steps, moving, forwards=int(self.has_teacher(ctx))),)
