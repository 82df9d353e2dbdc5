"""Agnostic Federated Learning.

Mohri, Sivek, Suresh, ICML 2019, arXiv:1902.00146.

Idea: the model is trained for the worst mixture of the clients' data: the server's weights move towards the
clients with the largest losses.

Wire:
    down    params  the global model
            weight  N l_k, the client's own weight (an instruction)
    up      params  the trained model, MEAN with the weights l_k
            loss    F_k, the mean loss of the received model on the client's examples, GATHER
    keeps   nothing
    server  params, the mixture l

The objective is min over w, max over l of sum_k l_k F_k(w), with l in the simplex of all mixtures of the N
clients. A round makes a step of both players (Algorithm STOCHASTIC-AFL): the server takes the mean of the
clients' models with the weights l_k, and then

    l <- project(l + weight_lr g),    g_k = F_k N / K for the K clients of the cohort, else 0.

g is an unbiased estimate of the gradient with respect to l. The projection is the Euclidean one (Duchi et
al., ICML 2008).

Deviations: the paper makes single gradient steps; here clients train as `local` says. The weights of a cohort
are divided by their sum; if it is 0, the model stays as it is. The paper returns the mean of the models of
all rounds, as `evaluation.average` does on request.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import ClientInstructions
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import measure_losses


@dataclass(frozen=True, kw_only=True)
class AFLState(ServerState):
    """The server's model and the weights of the clients.

    Attributes:
        mixture: l, float64 `[clients]`, at least 0 with sum 1.
    """

    mixture: Tensor


@dataclass(frozen=True, kw_only=True)
class AFL(FedAvg, ClientInstructions):
    """FedAvg whose weights follow the clients' losses; `weight_lr: 0` counts every client alike.

    Attributes:
        weight_lr: learning rate of the weights; a larger one moves them faster to the largest losses. A step
            is weight_lr N F_k / K long. If that is well above 1 / N, one cohort takes all weight, and a
            cohort without weight leaves the model as it is. None: 0.1 K / N², with which a step is a tenth of
            the loss times the equal weight 1 / N.
    """

    purposes: ClassVar[tuple[str, ...]] = ("fairness",)
    asynchronous: ClassVar[bool] = False
    further_example_use: ClassVar[str] = "losses of the received model"
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "loss": Reduction.GATHER}
    heterogeneous: ClassVar[bool] = False

    weight_lr: Annotated[float, Range(minimum=0)] | None = None

    def init_server_state(self, ctx: Context) -> AFLState:
        """The parent's model, and equal weights."""
        params, clients = super().init_server_state(ctx).params, ctx.num_clients
        return AFLState(params=params, mixture=torch.full((clients,), 1 / clients, dtype=torch.float64))

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The client's weight, times N."""
        return {"weight": {"share": (state.mixture[client] * ctx.num_clients).float()}}

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The weight that the server sent; 0 for a client without examples."""
        return float(task.instruction["weight"]["share"]) if task.num_examples else 0.0

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and the loss of the received model; 0 for a client without examples."""
        update = super().make_update(ctx, task, trained)
        losses = measure_losses(ctx, task.broadcast["params"], task.examples)
        loss = losses.double().sum() / max(len(losses), 1)
        return update._replace(upload={**update.upload, "loss": {"mean": loss.float()}})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one forward pass over the examples for the loss."""
        return (*super().count_effort(ctx, state, steps), ctx.local.count_forward_passes(steps))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> AFLState:
        """The mean of the models, and the weights after one step of projected gradient ascent."""
        after, ascent = super().aggregate(ctx, state, reduced), torch.zeros_like(state.mixture)
        for client, sent in zip(reduced.clients, reduced["loss"], strict=True):
            ascent[client] = sent["mean"].double() * ctx.num_clients / len(reduced.clients)
        rate = 0.1 * ctx.cohort_size / ctx.num_clients**2 if self.weight_lr is None else self.weight_lr
        steps = rate * ascent.nan_to_num(posinf=LARGEST_STEP)
        mixture = project_onto_simplex(state.mixture + steps.clamp(max=LARGEST_STEP))
        return AFLState(params=after.params, mixture=mixture)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The largest weight, and the number of clients whose weight is above 0."""
        weighted = int((state.mixture > 0).sum())
        return {"largest_weight": round(float(state.mixture.max()), 6), "weighted_clients": weighted}


LARGEST_STEP = 1e10
"""The largest step of a weight, and the ascent of an infinite loss: beside larger numbers a 1 is lost."""


def project_onto_simplex(vector: Tensor) -> Tensor:
    """Return the point of the simplex (entries at least 0 with sum 1) that is nearest to a vector, `[n]`.

    >>> project_onto_simplex(torch.tensor([0.6, 0.6, -1.0])).tolist()
    [0.5, 0.5, 0.0]
    """
    ordered = vector.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(vector) + 1, dtype=vector.dtype)
    kept = int((ordered > excess).sum())
    return (vector - excess[kept - 1]).clamp(min=0)
