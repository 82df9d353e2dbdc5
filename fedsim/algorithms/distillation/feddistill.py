"""Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation ...

Jeong, Oh, Kim, Park, Bennis, Kim, 2018, arXiv:1811.11479; "... under Non-IID Private Data" ends its title.
FedDistill, and FedDistill+ with parameters, are the two forms of it that FedGen (Zhu, Hong, Zhou, ICML 2021,
arXiv:2105.10056) is compared with.

Idea: clients tell each other what their models say of each class on average, and learn from it.

Wire:
    down    logits    the cohort's mean logits for each label, of the last round; from the second round on
            params    FedDistill+: the global model
    up      logits    the client's mean logits for each label that it holds, GATHER
            params    FedDistill+: the trained model, MEAN
    keeps   own       FedDistill: its model; before the first visit the first one, which is the same for all
    server  logits; FedDistill+: params

A local step descends CE + gamma KL(softmax(L_y) || model(x)), L_y being the row of the example's own label. A
row is the mean over the clients of the cohort that hold the label, each counting alike; a label that none of
them holds has no row, which travels as NaN, and is left out of the divergence.

Deviations: a client's rows are taken with its trained model after its round, over all its examples; the
authors add up logits while they train. They stand for one round; FedGen's code goes on adding over all
rounds, and lets a client that lacks a label send zeros for it.

FedDistill has no model for everybody: clients are scored with their own, and records have no
`global_accuracy`.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.models.net import Params
from fedsim.techniques.soft_targets import kl_by_example
from fedsim.training.local_loop import TrainedModel, cross_entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class FedDistillState(ServerState):
    """What the server knows.

    Attributes:
        logits: the mean logits of each label, float32 `[classes, classes]`; NaN where there are none.
    """

    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class FedDistillPlus(FedAvg, PersonalBroadcast):
    """FedAvg whose clients learn from the cohort's mean logits too; gamma 0 is FedAvg.

    Attributes:
        gamma: weight of the distillation, >= 0.
    """

    gamma: Annotated[float, Range(minimum=0)] = 0.1

    tasks: ClassVar[Collection[str]] = frozenset({"classes"})
    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN, "logits": Reduction.GATHER}

    def has_cohort_logits(self, ctx: Context) -> bool:
        """Whether clients have the cohort's logits in this round."""
        return self.gamma > 0 and ctx.round > 0

    def init_server_state(self, ctx: Context) -> FedDistillState:
        """The parent's, and no logits."""
        unknown = torch.full((ctx.num_classes, ctx.num_classes), torch.nan)
        return FedDistillState(params=super().init_server_state(ctx).params, logits=unknown)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The parent's, and the last cohort's logits."""
        more = {"logits": {"rows": state.logits}} if self.has_cohort_logits(ctx) else {}
        return {**super().broadcast(ctx, state), **more}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model alone."""
        return super().broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's, and the mean of the rows that came, label by label."""
        state = super().aggregate(ctx, state, reduced)
        if not self.gamma:
            return state
        rows = torch.stack([each["rows"].cpu() for each in reduced["logits"]])
        return replace(state, logits=rows.double().nanmean(0).float())

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, and the divergence from what the cohort said of the same labels."""
        if not self.has_cohort_logits(ctx):
            return super().loss(ctx, task, params, batch)
        logits = ctx.net(params, batch.x)
        term = distillation_loss(task.broadcast["logits"]["rows"], logits, batch)
        return cross_entropy(logits, batch) + self.gamma * term

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The parent's, and the client's rows."""
        update = super().make_update(ctx, task, trained)
        rows = {"rows": mean_logits(ctx, task, trained.params)} if self.gamma else {}
        return update._replace(upload={**update.upload, "logits": rows})


@dataclass(frozen=True, kw_only=True)
class FedDistill(FedDistillPlus):
    """As FedDistill+, but no parameter travels: every client trains a model of its own.

    Attributes:
        gamma: weight of the distillation, >= 0.
    """

    stateful: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """Nothing."""
        return ()

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The whole model."""
        return ctx.net.keys

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """Nothing: there is no model for everybody."""
        return {}


def distillation_loss(rows: Tensor, logits: Tensor, batch: Batch) -> Tensor:
    """KL(softmax(row of the label) || model), in nats: the mean over the batch, where no row counts 0.

    Args:
        rows: `[classes, classes]`, NaN where a label has none.
        logits: the model's, `[batch, classes]`.
        batch: its labels and mask.
    """
    mine = rows[batch.y]
    known = ~mine.isnan().any(-1)
    return masked_mean(kl_by_example(mine.nan_to_num(), logits) * known, batch.mask)


@torch.no_grad()
def mean_logits(ctx: Context, task: ClientTask, params: Params) -> Tensor:
    """What a model says of a client's examples, label by label: float32 `[classes, classes]`.

    A label of which the client has no example has NaN.
    """
    each = torch.eye(ctx.num_classes, dtype=torch.float64, device=task.device)
    sums = torch.zeros_like(each)
    for batch in task.examples.batches():
        # A product of matrices, since adding by index has no fixed order on a GPU.
        sums += each[batch.y].T @ ctx.net(params, batch.x).double()
    return (sums / task.label_counts.double().unsqueeze(1)).float()
