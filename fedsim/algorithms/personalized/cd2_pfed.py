"""CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in Federated Learning.

Shen, Zhou, Yu, CVPR 2022, arXiv:2204.03880.

Idea: in every layer some channels are shared by all clients and the others are private to each client; the
two halves of a client's model learn from each other.

This is a reading: there is no public code, and the choices that the paper leaves open are listed below.

Wire:
    down    params    the channels that were shared in the previous round
    up      params    the trained shared channels, MEAN
    keeps   own       its model, for its private channels
    server  params    the shared channels; the others keep the values from before they became private

In round r of R (from 0), the last floor(p C) of a layer's C channels are private, with p = p_max r / (R - 1).
A local step descends

    CE(whole) + lambda_kd (KL(shared || private) + KL(private || shared)) / 2,

where `shared` and `private` are the logits of the shared and of the private channels alone. Afterwards the
private numbers are beta_t trained + (1 - beta_t) before, with beta_t = min(1, beta_0 + (1 - beta_0) r / R).

Deviations, all of them choices of this reading: the inputs of the first layer and the outputs of the last
belong to both parts; weights between a shared and a private channel are private; running statistics are those
of the whole model. A channel that becomes private starts from its shared value, which is broadcast once more
in that round. A client outside the cohort when channels became private has its own last values of them;
before its first round it has the initial values, which all clients make from the seed. There is no global
model.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import PRIVATE_PARAMS, FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range, Share
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort, ReducedUpdates
from fedsim.core.capabilities import PersonalBroadcast, PersonalModels
from fedsim.errors import FieldError
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Net, Params
from fedsim.techniques.channel_split import (
    count_private_channels,
    make_masks,
    mask_params,
    replace_shared_part,
    shared_part,
)
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class CD2PFed(FedAvg, PersonalBroadcast, PersonalModels):
    """FedAvg of a shrinking number of channels; `p_max: 0` is FedAvg.

    Attributes:
        p_max: share of the channels that are private in the last round.
        lambda_kd: weight of the mutual distillation, >= 0.
        beta_0: in the first round, the share of the private channels' training that they keep.
    """

    p_max: Annotated[float, Range(minimum=0, below=1)] = 0.5
    lambda_kd: Annotated[float, Range(minimum=0)] = 1.0
    beta_0: Share = 0.5

    purposes: ClassVar[tuple[str, ...]] = ("personalisation", "distillation")
    stateful: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False
    resizes_model: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model that is not a chain of channels, or has no private channels."""
        hint = "choose a model of convolutions and linear layers one after another, or a ResNet"
        try:
            fault = (
                "" if count_private_channels(net, share=0.9) else f"{net.name} has no layers before its head"
            )
        except ValueError as error:
            fault = str(error)
        return (FieldError("name", "cd2_pfed", fault, hint),) if fault else ()

    def depends_on_num_rounds(self) -> bool:
        """Whether private channels exist: their share grows over the run."""
        return self.p_max > 0

    def private_share(self, ctx: Context, round: int) -> float:
        """The share of the channels that are private in a round (from 0)."""
        return self.p_max * max(0, round) / max(1, ctx.rounds - 1)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The channels that were shared in the previous round."""
        return {
            "params": shared_part(
                ctx.net, ctx.select_architecture(state.params), self.private_share(ctx, ctx.round - 1)
            )
        }

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """The model with the mean in its shared channels."""
        share = self.private_share(ctx, ctx.round)
        part = tree.cast_like(mean, shared_part(ctx.net, params, share))
        return replace_shared_part(ctx.net, params, part, share)

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The channels that are shared in the round that just ended."""
        return {
            "params": shared_part(
                ctx.net, ctx.select_architecture(state.params), self.private_share(ctx, ctx.round)
            )
        }

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The broadcast channels, and the client's own private channels."""
        return self.compose_model(ctx, task, ctx.round - 1)

    def compose_model(self, ctx: Context, task: ClientTask, round: int) -> Params:
        """The client's own model, with the broadcast channels that are shared in this round."""
        own = task.client_state.get(PRIVATE_PARAMS) or ctx.cached_init_params(task.device)
        return replace_shared_part(ctx.net, own, task.broadcast["params"], self.private_share(ctx, round))

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy of the whole model, plus the distance between its two halves."""
        base, share = super().loss(ctx, task, params, batch), self.private_share(ctx, ctx.round)
        if not self.lambda_kd or not count_private_channels(ctx.net, share):
            return base
        halves = make_masks(ctx.net, share, batch.x.device)
        shared, private = (
            ctx.net(mask_params(params, half), batch.x) for half in (halves.shared, halves.private)
        )
        several = batch.y.dim() == 2
        apart = kl_divergence(shared, private, batch.mask, several_labels=several)
        apart = apart + kl_divergence(private, shared, batch.mask, several_labels=several)
        return base + self.lambda_kd / 2 * apart

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The shared channels for the server; the private channels move a share of the way."""
        share = self.private_share(ctx, ctx.round)
        kept = min(1.0, self.beta_0 + (1 - self.beta_0) * ctx.round / ctx.rounds)
        up, before = shared_part(ctx.net, trained.params, share), self.initial_params(ctx, task)
        slow = {key: torch.lerp(before[key], value, kept) for key, value in trained.params.items()}
        own = replace_shared_part(ctx.net, slow, up, share)
        return ClientUpdate({"params": up}, {PRIVATE_PARAMS: own}, {"train_loss": trained.loss}, own)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's private channels with the shared channels of the round that just ended."""
        return self.compose_model(ctx, task, ctx.round)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, plus two passes through half a model, each counted as three forward passes."""
        both = self.lambda_kd and count_private_channels(ctx.net, self.private_share(ctx, ctx.round))
        usual = super().count_effort(ctx, state, steps)
        return tuple(kind._replace(forwards=6 if both else 0) for kind in usual)
