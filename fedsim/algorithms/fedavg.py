"""Communication-Efficient Learning of Deep Networks from Decentralized Data.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, arXiv:1602.05629.

Idea: clients train the global model on their own data, and the server averages the models, weighted by how
many examples each was trained on.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params

Deviations: the mean is over the clients that came, so its weights sum to 1 under partial participation.
Float buffers of normalisation layers are averaged like parameters.

Reference result: see docs/results.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from .. import tree
from ..core import Algorithm, Batch, Context, Reduced, Reduction, Report, ServerState, Visit
from ..local import Trained, cross_entropy, sgd
from ..net import Params
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging (Algorithm 1): clients train the global model, the server averages the models.

    Most papers change one of its seams: what travels (`shared`), what moves (`trainable`), where a client
    starts (`start`), what it minimises (`loss`), what it sends (`finish`), what the server makes of it
    (`aggregate`).
    """

    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN}
    heterogeneous: ClassVar[bool] = True

    def shared(self, ctx: Context) -> Collection[str]:
        """Keys of the parameters and buffers that travel."""
        return ctx.net.keys

    def trainable(self, ctx: Context) -> Collection[str]:
        """Keys that move in this round."""
        return ctx.net.parameters

    def init(self, ctx: Context) -> ServerState:
        """A fresh model of every architecture, seeded by the experiment."""
        if len(ctx.nets) == 1:
            return ServerState(params=ctx.net.init(ctx.seed))
        return ServerState(params={str(m): net.init(ctx.seed) for m, net in enumerate(ctx.nets)})

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The shared part of the global model."""
        return {"params": tree.select(ctx.own(state.params), self.shared(ctx))}

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The mean of the cohort's models (of each architecture), rounded once from float64."""
        mean = reduced["params"]
        if len(ctx.nets) == 1:
            return replace(state, params=_updated(state.params, mean))
        groups = {model: _updated(state.params[model], part) for model, part in mean.items()}
        return replace(state, params={**state.params, **groups})

    def train(self, ctx: Context, visit: Visit) -> Report:
        """Local SGD on the loss, from the start."""
        trained = sgd(
            ctx,
            visit,
            self.start(ctx, visit),
            lambda params, batch: self.loss(ctx, visit, params, batch),
            trainable=self.trainable(ctx),
        )
        return self.finish(ctx, visit, trained)._replace(model=trained.params)

    def received(self, ctx: Context, visit: Visit) -> Params:
        """Where the client's training starts."""
        return self.start(ctx, visit)

    def start(self, ctx: Context, visit: Visit) -> Params:
        """Where the client's training starts: all keys of the net."""
        params: Params = visit.broadcast["params"]
        return params

    def loss(self, ctx: Context, visit: Visit, params: Params, batch: Batch) -> Tensor:
        """What a local step descends: a scalar."""
        return cross_entropy(ctx.net(params, batch.x), batch)

    def finish(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        """What the client sends, keeps and reports."""
        upload = {"params": tree.select(trained.params, self.shared(ctx))}
        return Report(upload, {}, {"train_loss": trained.loss})


def _updated(params: Tree, mean: Tree) -> Params:
    """The parameters with those that travelled replaced by their mean."""
    return {**params, **tree.cast_like(mean, tree.select(params, mean))}
