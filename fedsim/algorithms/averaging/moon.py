"""Model-Contrastive Federated Learning.

Li, He, Song, CVPR 2021, arXiv:2103.16257.

Idea: a client's features of an image are pulled towards the global model's features of it, and pushed away
from those of the client's previous model.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   previous  the model that it trained last
            trained   1 if there is one, else 0
    server  params

With z the head's input (for `moon_cnn` the 256 numbers of its projection), and z_g and z_p the same of the
global and of the client's previous model, the local loss adds the mean over the batch of

    mu * -log( exp(cos(z, z_g) / tau) / (exp(cos(z, z_g) / tau) + exp(cos(z, z_p) / tau)) )    (Eq. 3)

Deviations: in a client's first round the term is 0. In the authors' code this is so in round 1 alone; a
client that first comes later has a randomly initialised model as the previous one. Models without a
projection are compared by their features. One previous model is kept.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import find_missing_features
from fedsim.base.parameters import Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import masked_mean, supervised_loss


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """FedAvg with a contrastive term between the global and the client's previous model; `mu: 0` is FedAvg.

    Attributes:
        mu: weight of the contrastive term, >= 0.
        tau: temperature of the contrastive term.
    """

    mu: Annotated[float, Range(minimum=0)] = 5.0
    tau: Positive = 0.5

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)
    stateful: ClassVar[bool] = True

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model whose head cannot run alone."""
        return find_missing_features("moon", net) if self.mu else ()

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model in the place of a previous one, marked as not trained."""
        return {"previous": dict(broadcast["params"]), "trained": torch.zeros(())}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, for the server and for the client state."""
        update = super().make_update(ctx, task, trained)
        if not trained.steps:
            return update._replace(client_state=task.client_state)
        return update._replace(client_state={"previous": dict(trained.params), "trained": torch.ones(())})

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy and the contrastive term."""
        if not self.mu:
            return super().loss(ctx, task, params, batch)
        features = ctx.net.features(params, batch.x)
        with torch.no_grad(), ctx.net.evaluation_mode():
            towards = ctx.net.features(task.broadcast["params"], batch.x)
            away = ctx.net.features(task.client_state["previous"], batch.x)
        term = self.contrastive_loss(features, towards, away, batch.mask)
        weight: Tensor = self.mu * task.client_state["trained"]
        return supervised_loss(ctx, ctx.net.classify(params, features), batch) + weight * term

    def contrastive_loss(self, z: Tensor, towards: Tensor, away: Tensor, mask: Tensor | None) -> Tensor:
        """The contrastive term (Eq. 3), mean over the batch.

        Args:
            z: features `[batch, ...]`.
            towards: the global model's features.
            away: the features of the client's previous model.
            mask: `[batch]`, 0 for padding; None if every row is an example.
        """
        near, far = (F.cosine_similarity(z.flatten(1), to.flatten(1)) / self.tau for to in (towards, away))
        # -log(e^near / (e^near + e^far)) = log(1 + e^(far - near))
        return masked_mean(F.softplus(far - near), mask)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and two more forward passes."""
        return tuple(
            kind._replace(forwards=2 if self.mu else 0) for kind in super().count_effort(ctx, state, steps)
        )
