"""Personalized Federated Learning with Feature Alignment and Classifier Collaboration.

Xu, Tong, Huang, ICLR 2023, arXiv:2306.11867.

Idea: clients share a body whose features of a class lie near the clients' mean features of that class, and
each client's head is the combination of the cohort's heads that predicts best for the client's own
distribution.

Wire:
    down    params      the body
            head        the client's own combination of heads; the initial head before its first round
            prototypes  the mean features of each class over the last cohort; from the second round on
    up      params      the trained body, MEAN
            heads       the trained head, GATHER
            moments     mean features of each class times the class's share, and the variance V, GATHER
            sums        the sum of the trained body's features of each class, and the class's examples, SUM
    keeps   nothing
    server  params, the head of each client that has taken part, prototypes

The features z are the input of the head, d numbers. A client first makes `head_epochs` passes that train the
head alone at the rate `head_lr`, then the round's local training of the body alone, on

    CE + lambda_align |z - C_y|^2 / d,

where C_y is the prototype of the example's class. With p_k the share of class k among client i's n_i
examples, mu_k its mean features under the received body, h_i = (p_1 mu_1, ..., p_C mu_C) and

    V_i = (E|z|^2 - sum_k p_k^2 |mu_k|^2) / n_i,

the server gives client i the heads of the cohort with the weights a >= 0, sum a = 1, that minimise

    sum_j a_j^2 V_j + |h_i - sum_j a_j h_j|^2,

an estimate of the client's test loss. Weights below 0.001 become 0.

Deviations: as in the authors' code, a class that nobody in the last cohort had is aligned with the client's
own mean features before training, in round 1 nothing is aligned, and the head's rate is 0.1. Bodies are
averaged by numbers of examples, over the cohort. The authors' clients keep the combined head; here the
server keeps it, because a client that is away cannot receive it. The body's passes have the round's local
settings, the head's passes their batches. There is no global model, and records have no `global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.personal_parts import find_missing_body, find_missing_features
from fedsim.algorithms.personalized.fedproto import count_features, prototype_distance
from fedsim.algorithms.personalized.fedrep import FedRep
from fedsim.base import tree
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
from fedsim.core.capabilities import ClientInstructions, PersonalBroadcast
from fedsim.core.census import Real
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.label_means import mean_by_label
from fedsim.training.losses import supervised_loss

LEAST_WEIGHT = 1e-3
"""Weights of heads below this become 0, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class FedPACState(ServerState):
    """The server state.

    Attributes:
        heads: {client: its combined head}, for the clients that have taken part.
        prototypes: the mean features of each class over the last cohort, float32 `[classes, features]`; NaN
            for a class that nobody had.
        own_weight: the weight of a client's own head, mean over the last cohort.
    """

    heads: Mapping[str, Params] = field(default_factory=dict)
    prototypes: Tensor
    own_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FedPAC(FedRep, ClientInstructions, PersonalBroadcast):
    """A shared body with features aligned by class, and for each client its best combination of heads.

    Attributes:
        lambda_align: weight of the distance of the features to the prototypes, >= 0.
        head_lr: learning rate of the head's passes, > 0.
        combine: whether clients get combinations of the cohort's heads; without, each keeps its own head.
    """

    purposes: ClassVar[tuple[str, ...]] = ("personalisation", "label-skew")
    further_example_use: ClassVar[str] = "mean features of each class"

    lambda_align: Annotated[float, Range(minimum=0)] = 1.0
    head_lr: Annotated[float, Range(above=0)] = 0.1
    combine: bool = True

    uploads: ClassVar[Mapping[str, Reduction]] = {
        **FedRep.uploads,
        "heads": Reduction.GATHER,
        "moments": Reduction.GATHER,
        "sums": Reduction.SUM,
    }
    stateful: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = False
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model without a body, or whose head cannot run alone."""
        return [*find_missing_body("fedpac", net), *find_missing_features("fedpac", net)]

    def private_keys(self, ctx: Context) -> Collection[str]:
        """No keys: the server keeps the heads."""
        return ()

    # server

    def init_server_state(self, ctx: Context) -> FedPACState:
        """The initial model, without heads and prototypes."""
        unknown = torch.full((ctx.num_classes, count_features(ctx.net, ctx.input_shape)), torch.nan)
        return FedPACState(params=super().init_server_state(ctx).params, prototypes=unknown)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The body, and from the second round on the prototypes."""
        aligns = self.lambda_align > 0 and ctx.round > 0
        more = {"prototypes": {"rows": state.prototypes}} if aligns else {}
        return {**super().broadcast(ctx, state), **more}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The body: a personal model needs no prototypes."""
        return super().broadcast(ctx, state)

    def instructs_personal(self, ctx: Context) -> bool:
        """Clients get their heads for the personal evaluation too."""
        return True

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The client's head."""
        return {"head": state.heads.get(str(client)) or tree.select(state.params, ctx.net.head)}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedPACState:
        """The mean body, the prototypes, and a combination of heads for each client of the cohort."""
        state, count = super().aggregate(ctx, state, reduced), len(reduced.clients)
        weights = np.eye(count)
        # Without examples a client has no moments, and its head is untrained: nobody else takes it.
        trained = np.flatnonzero(reduced.num_examples)
        if self.combine and len(trained):
            moments = [each["shares"].double().flatten().cpu().numpy() for each in reduced["moments"]]
            variances = np.array([float(each["variance"]) for each in reduced["moments"]])
            weights[np.ix_(trained, trained)] = combine_heads(np.stack(moments)[trained], variances[trained])
        heads = dict(state.heads)
        for client, row in zip(reduced.clients, weights, strict=True):
            mixed = tree.weighted_sum(reduced["heads"], row.tolist())
            heads[str(client)] = tree.cast_like(mixed, reduced["heads"][0])
        prototypes = state.prototypes
        if self.lambda_align and count:
            rows = reduced["sums"]["features"] / reduced["sums"]["examples"].unsqueeze(1)
            prototypes = rows.to(prototypes)
        own = float(np.diag(weights).mean()) if count else state.own_weight
        return FedPACState(params=state.params, heads=heads, prototypes=prototypes, own_weight=own)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The weight of a client's own head, mean over the cohort."""
        return {"own_head_weight": round(state.own_weight, 6)}

    # client

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The body and the client's head."""
        return {**task.broadcast["params"], **task.instruction["head"]}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The moments under the received body, then the head's passes, then the body's."""
        means, squares = self.measure_features(ctx, task, self.initial_params(ctx, task))
        update = super().train_client(ctx, _complete_prototypes(task, means))
        model: Params = dict(update.model or {})
        more = {
            "heads": tree.select(model, ctx.net.head),
            "moments": compute_moments(task, means, squares) if self.combine else {},
            "sums": self.sum_features(ctx, task, model) if self.lambda_align else {},
        }
        return update._replace(upload={**update.upload, **more})

    def make_head_context(self, ctx: Context) -> Context:
        """The context with the head's rate."""
        return replace(ctx, local=ctx.local.with_constant_rate(self.head_lr))

    def make_head_task(self, ctx: Context, task: ClientTask) -> ClientTask:
        """FedRep's, without prototypes: the head's passes leave the features as they are."""
        plain = {name: payload for name, payload in task.broadcast.items() if name != "prototypes"}
        return super().make_head_task(ctx, task._replace(broadcast=plain))

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distance of the features to the prototypes of their classes."""
        if "prototypes" not in task.broadcast:
            return super().loss(ctx, task, params, batch)
        features = ctx.net.features(params, batch.x)
        base = supervised_loss(ctx, ctx.net.classify(params, features), batch)
        rows = task.broadcast["prototypes"]["rows"]
        return base + self.lambda_align * prototype_distance(features, rows, batch)

    def measure_features(self, ctx: Context, task: ClientTask, params: Params) -> tuple[Tensor, Tensor]:
        """The mean features of each class `[classes, features]`, and their mean squared norms `[classes]`.

        The row of a class without examples is NaN.
        """

        def predict(x: Tensor) -> Tensor:
            found = ctx.net.features(params, x).flatten(1)
            return torch.cat([found, found.square().sum(1, keepdim=True)], dim=1)

        both = mean_by_label(ctx, task, count_features(ctx.net, ctx.input_shape) + 1, predict)
        return both[:, :-1], both[:, -1]

    def sum_features(self, ctx: Context, task: ClientTask, params: Params) -> Tree:
        """The sums of a body's features of each class, and the numbers of examples."""
        means, _ = self.measure_features(ctx, task, params)
        examples = task.label_counts
        return {"features": means.nan_to_num() * examples.unsqueeze(1), "examples": examples}

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """FedRep's effort, and forward passes over the examples for the moments and for the prototypes."""
        passes = int(self.combine or self.lambda_align > 0) + int(self.lambda_align > 0)
        usual = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps, passes)) if passes else usual


def _complete_prototypes(task: ClientTask, means: Tensor) -> ClientTask:
    """The task with the client's own mean features in place of the prototypes that the server lacks."""
    if "prototypes" not in task.broadcast:
        return task
    rows = task.broadcast["prototypes"]["rows"]
    rows = torch.where(rows.isnan(), means, rows)
    return task._replace(broadcast={**task.broadcast, "prototypes": {"rows": rows}})


def compute_moments(task: ClientTask, means: Tensor, squares: Tensor) -> Tree:
    """What the server needs to weight the heads: h_i `[classes, features]`, and V_i."""
    shares = (task.label_counts / max(task.num_examples, 1)).to(means)
    weighted = means.nan_to_num() * shares.unsqueeze(1)
    variance = (shares * squares.nan_to_num()).sum() - weighted.square().sum()
    return {"shares": weighted, "variance": variance.clamp(min=0) / max(task.num_examples, 1)}


def combine_heads(moments: Real, variances: Real) -> Real:
    """The weights of the cohort's heads for each client, float64 `[clients, clients]`, rows of sum 1.

    Args:
        moments: h_i of each client, float64 `[clients, classes * features]`.
        variances: V_i of each client, float64 `[clients]`.
    """
    rows: Real = np.stack([_weigh_heads(moments - own, variances, row) for row, own in enumerate(moments)])
    return rows


def _weigh_heads(distances: Real, variances: Real, own: int) -> Real:
    """The weights a that minimise a' P a, P = diag(V) + the products of the distances, on the simplex.

    The solution of the same problem with x >= 0 and the linear term -1'x in place of the sum is a multiple
    of a: a problem of non-negative least squares, which SciPy solves exactly.
    """
    from scipy.optimize import nnls  # slow to import

    matrix = np.diag(variances) + distances @ distances.T
    scale = float(np.trace(matrix))
    alone: Real = np.eye(len(matrix))[own]
    if not np.isfinite(scale) or scale == 0:
        return alone
    # The diagonal keeps the factor finite where a variance is 0, as with a single example.
    factor = np.linalg.cholesky(matrix / scale + 1e-10 * np.eye(len(matrix)))
    found, _ = nnls(factor.T, np.linalg.solve(factor, np.ones(len(matrix))))
    weights: Real = found / found.sum()
    kept: Real = np.where(weights < LEAST_WEIGHT, 0, weights)
    # More than 1 / LEAST_WEIGHT clients that are alike share all weight in smaller parts.
    return kept / kept.sum() if kept.any() else weights
