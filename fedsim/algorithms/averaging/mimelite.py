"""Breaking the Centralized Barrier for Cross-Device Federated Learning (MimeLite).

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, NeurIPS 2021, arXiv:2008.03606.

Idea: clients use the momentum of the server in every local step and leave it as it is; the server updates it
with full gradients at its own model. Local steps then resemble those of central SGD with momentum.

Wire:
    down    params    the global model
            momentum  m, of the server
    up      params    the trained model, MEAN
            gradient  of the loss on all examples of the client, at the global model, MEAN
    keeps   nothing
    server  params, momentum

MimeLite with SGD with momentum (Algorithm 1). A local step with the gradient g, and the server:

    w_i <- w_i - lr ((1 - beta) g + beta m),        m <- beta m + (1 - beta) (mean gradient at w).

Weight decay is a part of the client's objective, and thus of both gradients. If every client makes one step
on all of its examples, a round is a step of central SGD with momentum.

Deviations: means are weighted by numbers of examples. Full gradients are computed in evaluation mode and in
single precision, and are not clipped. A momentum of the local training comes on top; the paper has none.
The other base optimizers of the paper (Adam, RMSprop) and the variant Mime with its control variates are left
out. Statistics of normalisation layers have no momentum; they become the mean.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch

from fedsim.algorithms.fedavg import FedAvg, zero_weights
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class MimeLiteState(ServerState):
    """The server's model and its momentum.

    Attributes:
        momentum: m, over the parameters; with several architectures, one tree for each.
    """

    momentum: Tree


@dataclass(frozen=True, kw_only=True)
class MimeLite(FedAvg, PersonalBroadcast):
    """FedAvg whose clients use the server's momentum in every step; `beta: 0` is FedAvg.

    Attributes:
        beta: weight of the momentum, in [0, 1); a gradient has the weight 1 - beta.
    """

    purposes: ClassVar[tuple[str, ...]] = ("client-drift", "server-optimisation")
    further_example_use: ClassVar[str] = "the gradient of all examples"

    beta: Annotated[float, Range(minimum=0, below=1)] = 0.9

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "gradient": Reduction.MEAN}
    assumes_sgd: ClassVar[bool] = True

    def init_server_state(self, ctx: Context) -> MimeLiteState:
        """The parent's model, with a momentum of zeros."""
        params = super().init_server_state(ctx).params
        return MimeLiteState(params=params, momentum=ctx.map_architectures(zero_weights, params))

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model and the server's momentum."""
        return {**super().broadcast(ctx, state), "momentum": ctx.select_architecture(state.momentum)}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model."""
        return super().broadcast(ctx, state)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The parent's round, where a gradient has the weight 1 - beta."""
        local = replace(ctx.local, lr=ctx.local.lr * (1 - self.beta))
        return super().train_client(replace(ctx, local=local), task)

    def gradient_correction(self, ctx: Context, task: ClientTask) -> Tree:
        """The momentum, beta m / (1 - beta); the learning rate has the factor 1 - beta."""
        return tree.scale(task.broadcast["momentum"], self.beta / (1 - self.beta))

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and the full gradient at the global model."""
        update = super().make_update(ctx, task, trained)
        return update._replace(upload={**update.upload, "gradient": self.full_gradient(ctx, task)})

    def full_gradient(self, ctx: Context, task: ClientTask) -> Tree:
        """The gradient of the mean loss of all examples and of the weight decay.

        It is 0 without examples, and of the weights that do not train in this round.
        """
        # The memory layout changes rounding: models from training and from a checkpoint get the same one.
        params = tree.map(tree.to_channels_last, self.initial_params(ctx, task))
        momentum = task.broadcast["momentum"]
        moving = [key for key in momentum if key not in ctx.frozen]
        weights = {key: params[key].detach().clone().requires_grad_() for key in moving}
        total = tree.scale(weights, ctx.local.weight_decay * (task.num_examples > 0))
        for batch in task.examples.batches():
            with torch.enable_grad():
                value = self.loss(ctx, task, {**params, **weights}, batch)
            slopes = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
            for key, slope in zip(weights, slopes, strict=True):
                if slope is not None:
                    total[key] = total[key] + slope * (len(batch.x) / task.num_examples)
        return {
            key: total[key].detach() if key in total else torch.zeros_like(momentum[key]) for key in momentum
        }

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state, and the momentum moved to the mean gradient."""
        state = super().aggregate(ctx, state, reduced)
        momentum = ctx.update_architectures(
            lambda _, old, gradient: tree.map(
                lambda m, g: (self.beta * m.double() + (1 - self.beta) * g).to(m.dtype), old, gradient
            ),
            state.momentum,
            reduced["gradient"],
        )
        return replace(state, momentum=momentum)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and a gradient of all examples that moves nothing."""
        kinds = super().count_effort(ctx, state, steps)
        if not steps:
            return kinds
        # With a number of steps, the client's examples are unknown here; the mean serves for all clients.
        per_epoch = ctx.local.steps is None
        full = Effort(
            steps // ctx.local.epochs if per_epoch else 1,
            ctx.net.parameters,
            examples=None if per_epoch else round(ctx.mean_examples),
            update_steps=0,
        )
        return (*kinds, full)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The Euclidean norm of the momentum."""
        return {"momentum_norm": round(float(tree.dot(state.momentum, state.momentum)) ** 0.5, 6)}
