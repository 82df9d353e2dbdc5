"""Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation ...

Jeong, Oh, Kim, Park, Bennis, Kim, 2018, arXiv:1811.11479; its title ends with "... under Non-IID Private
Data". FedDistill, and FedDistill+ with parameters, are the two forms that FedGen (Zhu, Hong, Zhou, ICML 2021,
arXiv:2105.10056) is compared with.

Idea: clients exchange their models' mean logits for each label, and learn from the cohort's mean.

Wire:
    down    logits    the cohort's mean logits for each label, of the last round; from the second round on
            params    FedDistill+: the global model
    up      logits    the client's mean logits for each label that it holds, GATHER
            params    FedDistill+: the trained model, MEAN
    keeps   own       FedDistill: its model; before the first round the initial model, the same for all
    server  logits; FedDistill+: params

A local step descends CE + gamma KL(softmax(L_y) || model(x)), where L_y is the row of the example's label. A
row is the mean over the clients of the cohort that hold the label, each with the same weight. A label that no
client of the cohort holds has no row: it travels as NaN, and its examples have no KL term. A client whose
model has diverged has no rows either.

Deviations: a client computes its rows with its trained model after its local training, over all its examples;
the authors sum up logits during training. Rows stand for one round; FedGen's code sums over all rounds, and a
client that lacks a label sends zeros for it. The mean has the client's own row, as in FedGen's code; the
paper leaves it out. gamma is 1 in that code, and 0.1 here by default.

FedDistill has no global model: clients are scored with their personal models, and records have no
`global_accuracy`.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import (
    Batch,
    ClientTask,
    ClientUpdate,
    Context,
    Effort,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.models.net import Params
from fedsim.techniques.label_means import mean_by_label
from fedsim.techniques.soft_targets import kl_by_example
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import cross_entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class FedDistillState(ServerState):
    """The server state.

    Attributes:
        logits: the mean logits of each label, float32 `[classes, classes]`; NaN for a label without logits.
    """

    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class FedDistillPlus(FedAvg, PersonalBroadcast):
    """FedAvg whose clients also learn from the cohort's mean logits; `gamma: 0` is FedAvg.

    Attributes:
        gamma: weight of the distillation, >= 0.
    """

    gamma: Annotated[float, Range(minimum=0)] = 0.1

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "distillation")
    further_example_use: ClassVar[str] = "mean logits of each class"
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "logits": Reduction.GATHER}

    def has_cohort_logits(self, ctx: Context) -> bool:
        """Whether clients get the cohort's logits in this round."""
        return self.gamma > 0 and ctx.round > 0

    def init_server_state(self, ctx: Context) -> FedDistillState:
        """The parent's state, without logits."""
        unknown = torch.full((ctx.num_classes, ctx.num_classes), torch.nan)
        return FedDistillState(params=super().init_server_state(ctx).params, logits=unknown)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The parent's payloads, and the last cohort's logits."""
        more = {"logits": {"rows": state.logits}} if self.has_cohort_logits(ctx) else {}
        return {**super().broadcast(ctx, state), **more}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model."""
        return super().broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state, and the cohort's mean logits for each label."""
        state = super().aggregate(ctx, state, reduced)
        if not self.gamma:
            return state
        rows = torch.stack([each["rows"].cpu() for each in reduced["logits"]])
        # A row of a diverged model has no softmax if its logits are infinite, or infinitely far apart.
        spread = rows.amax(-1, keepdim=True) - rows.amin(-1, keepdim=True)
        rows = rows.where(spread.isfinite(), torch.nan)
        return replace(state, logits=rows.double().nanmean(0).float())

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the KL divergence from the cohort's logits for the same labels."""
        if not self.has_cohort_logits(ctx):
            return super().loss(ctx, task, params, batch)
        logits = ctx.net(params, batch.x)
        term = distillation_loss(task.broadcast["logits"]["rows"], logits, batch)
        return cross_entropy(logits, batch) + self.gamma * term

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The parent's update, and the client's mean logits for each label."""
        update = super().make_update(ctx, task, trained)
        rows = {"rows": mean_logits(ctx, task, trained.params)} if self.gamma else {}
        return update._replace(upload={**update.upload, "logits": rows})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one forward pass over the examples for the mean logits."""
        usual = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps)) if self.gamma else usual


@dataclass(frozen=True, kw_only=True)
class FedDistill(FedDistillPlus):
    """FedDistill+ without parameters on the wire: every client trains a personal model.

    Attributes:
        gamma: weight of the distillation, >= 0.
    """

    purposes: ClassVar[tuple[str, ...]] = ("communication", "distillation", "privacy")
    stateful: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False
    shares_parameters: ClassVar[bool] = False

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """No keys."""
        return ()

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The whole model."""
        return ctx.net.keys


def distillation_loss(rows: Tensor, logits: Tensor, batch: Batch) -> Tensor:
    """KL(softmax(row of the label) || model) in nats, mean over the batch; a label without a row counts 0.

    Args:
        rows: `[classes, classes]`, NaN for a label without a row.
        logits: the model's logits `[batch, classes]`.
        batch: labels and mask.
    """
    mine = rows[batch.y]
    known = ~mine.isnan().any(-1)
    return masked_mean(kl_by_example(mine.nan_to_num(), logits) * known, batch.mask)


def mean_logits(ctx: Context, task: ClientTask, params: Params) -> Tensor:
    """A model's mean logits on a client's examples, for each label: float32 `[classes, classes]`.

    The row of a label without examples is NaN.
    """
    return mean_by_label(ctx, task, ctx.num_classes, partial(ctx.net, params))
