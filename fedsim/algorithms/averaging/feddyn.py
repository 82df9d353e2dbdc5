"""Federated Learning Based on Dynamic Regularization.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, arXiv:2111.04263.

Idea: every client adds a linear and a quadratic term to its loss, which follow its own gradients. If the
models converge, they then converge to a minimum of the mean loss of all clients.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN, the same weight for every client with examples
    keeps   drift     d_k, the sum of its changes of the global model; zero before the first round
    server  params, drift (the mean of d_k over all clients, also of those outside the cohort)

A client of the cohort descends (Algorithm 1)

    L_k(w_k) + alpha <d_k, w_k - w> + alpha/2 |w_k - w|^2,        then d_k <- d_k + (w_k - w),

where w is the broadcast model. The server moves its drift d and then its model:

    d <- d + (1/N) sum over the cohort of (w_k - w),        w <- (the cohort's mean of w_k) + d.

The paper writes grad L_k = -alpha d_k for the client's term, and h = -alpha d for the server's. Like the
authors' code, fedsim keeps both without the factor alpha.

Deviations: local training replaces the exact minimum. All clients have the same alpha, as in Algorithm 1; the
authors' code divides it by a client's relative number of examples. `alpha: 0`, which the paper excludes, also
leaves out the server's drift. Statistics of normalisation layers have no drift; they become the mean. With
several architectures, each has its own drift, and N counts the clients of the architecture.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg, zero_weights
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, ReducedUpdates, ServerState
from fedsim.core.capabilities import SentUpdates
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedDynState(ServerState):
    """The server's model and the mean drift of the clients.

    Attributes:
        drift: d, over the parameters; with several architectures, one tree for each.
    """

    drift: Tree


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg, SentUpdates):
    """FedAvg with a dynamic regulariser; `alpha: 0` is FedAvg with equal weights.

    Attributes:
        alpha: weight of the regulariser, >= 0.
    """

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)

    alpha: Annotated[float, Range(minimum=0)] = 0.01

    stateful: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = False

    def init_server_state(self, ctx: Context) -> FedDynState:
        """The parent's model, with a drift of zeros."""
        params = super().init_server_state(ctx).params
        return FedDynState(params=params, drift=ctx.map_architectures(zero_weights, params))

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The parent's state, and a drift of zeros."""
        return {**super().init_client_state(ctx, broadcast), "drift": zero_weights(ctx, broadcast["params"])}

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """1 for a client with examples, else 0."""
        return float(task.num_examples > 0)

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The parent's loss, plus alpha <d_k, w_k - w> + alpha/2 |w_k - w|^2."""
        change, drift = _change(ctx, task, params), task.client_state["drift"]
        regulariser = tree.dot(change, tree.add(drift, tree.scale(change, 0.5)))
        return super().loss(ctx, task, params, batch) + self.alpha * regulariser

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The parent's update, and d_k <- d_k + (w_k - w) for the client state."""
        update = super().make_update(ctx, task, trained)
        drift = tree.add(task.client_state["drift"], _change(ctx, task, trained.params))
        return update._replace(client_state={**update.client_state, "drift": drift})

    def match_sent_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> Tree:
        """The drift grows by the change that the server receives, so that d stays the mean of all d_k."""
        sent = {**self.initial_params(ctx, task), **update.upload["params"]}
        return {
            **update.client_state,
            "drift": tree.add(task.client_state["drift"], _change(ctx, task, sent)),
        }

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state from the mean plus d, with the next d."""
        means = reduced["params"]
        if not (self.alpha and means):
            return super().aggregate(ctx, state, reduced)
        drift = ctx.update_architectures(
            lambda arch_ctx, old, mean: _move_drift(
                arch_ctx, old, arch_ctx.select_architecture(state.params), mean, reduced
            ),
            state.drift,
            means,
        )
        shifted = ctx.map_architectures(
            lambda arch_ctx, mean: {
                **mean,
                **tree.add(arch_ctx.select_architecture(drift), tree.select(mean, arch_ctx.net.parameters)),
            },
            means,
        )
        payloads = {**reduced.payloads, "params": shifted}
        return super().aggregate(ctx, replace(state, drift=drift), replace(reduced, payloads=payloads))

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The Euclidean norm of the server's drift."""
        more = {"drift_norm": round(float(tree.dot(state.drift, state.drift)) ** 0.5, 6)}
        return {**super().describe_round(ctx, state), **more}


def _change(ctx: Context, task: ClientTask, params: Params) -> Tree:
    """The change w_k - w, over the parameters."""
    return tree.difference(params, task.broadcast["params"], ctx.net.parameters)


def _move_drift(ctx: Context, drift: Tree, params: Params, mean: Tree, reduced: ReducedUpdates) -> Tree:
    """The drift d + (1/N) sum of (w_k - w), by the mean of the clients that have examples."""
    came = zip(reduced.clients, reduced.weights, strict=True)
    trained = sum(weight for client, weight in came if ctx.is_of_architecture(client))
    change = tree.difference(mean, params, drift)
    return tree.cast_like(tree.add(drift, tree.scale(change, trained / ctx.num_architecture_clients)), drift)
