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

Reference result: see docs/results/README.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Batch, Context, Effort, Reduced, Reduction, Report, ServerState, Visit
from fedsim.models.net import Params
from fedsim.training.local_loop import Descent, Trained, cross_entropy, descend

OWN = "own"
"""Where a client's memory has the keys that it keeps to itself."""


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging (Algorithm 1): clients train the global model, the server averages the models.

    Most papers change one of its seams: what travels (`shared`), what each client keeps to itself (`kept`),
    what moves (`trainable`), where a client starts (`start`), what it minimises (`loss`), what is added to
    its gradients (`correction`), what it sends (`finish`), where the server goes from there (`move`).
    """

    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN}
    heterogeneous: ClassVar[bool] = True

    def shared(self, ctx: Context, state: Any) -> Collection[str]:
        """Keys of the parameters and buffers that travel in this round: what comes down goes up again."""
        return ctx.net.keys

    def kept(self, ctx: Context) -> Collection[str]:
        """Keys that are each client's own, kept from visit to visit; only where the method is stateful."""
        return ()

    def trainable(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """Keys that move in a client's round, given what came down to it."""
        return ctx.net.parameters

    def init(self, ctx: Context) -> ServerState:
        """A fresh model of every architecture, seeded by the experiment."""
        if len(ctx.nets) == 1:
            return ServerState(params=ctx.fresh())
        return ServerState(params={str(m): ctx.for_model(m).fresh() for m in range(len(ctx.nets))})

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The shared part of the global model."""
        return {"params": tree.select(ctx.own(state.params), self.shared(ctx, state))}

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The server's move, for each architecture that came."""
        params = ctx.each(
            lambda mine, held, mean: self.move(mine, held, mean, reduced), state.params, reduced["params"]
        )
        return replace(state, params=params)

    def move(self, ctx: Context, params: Params, mean: Tree, reduced: Reduced) -> Params:
        """The server's next model of one architecture: the cohort's mean, rounded once from float64.

        Args:
            ctx: the round, for this architecture.
            params: the model as it is.
            mean: of the clients' models, over the keys that travelled.
            reduced: everything that came, of all architectures.
        """
        return {**params, **tree.cast_like(mean, tree.select(params, mean))}

    def train(self, ctx: Context, visit: Visit) -> Report:
        """Local SGD on the loss, from the start."""
        moving = self.trainable(ctx, visit.broadcast)
        return self.report(ctx, visit, self.descend(ctx, visit, self.start(ctx, visit), moving))

    def descend(self, ctx: Context, visit: Visit, start: Params, trainable: Collection[str]) -> Trained:
        """Local SGD on the loss over the visit's batches, where only these keys move."""
        return descend(Descent(ctx, visit, start, self.loss, trainable, self.correction(ctx, visit)))

    def report(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        """What `finish` says, with the client's own model."""
        report = self.finish(ctx, visit, trained)
        return report if report.model is not None else report._replace(model=trained.params)

    def effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Every step moves what is trainable."""
        return (Effort(steps, self.trainable(ctx, self.broadcast(ctx, state))),)

    def received(self, ctx: Context, visit: Visit) -> Params:
        """Where the client's training starts."""
        return self.start(ctx, visit)

    def start(self, ctx: Context, visit: Visit) -> Params:
        """Where the client's training starts: all keys of the net.

        What came down, what the client keeps, and for the rest the first values, which everybody makes from
        the seed.
        """
        came: Params = visit.broadcast["params"]
        whole, own = len(came) == len(ctx.net.keys), visit.memory.get(OWN)
        if whole and not own:
            return came
        first = {} if whole else ctx.first(visit.device)
        return {**first, **came, **(own or {})}

    def loss(self, ctx: Context, visit: Visit, params: Params, batch: Batch) -> Tensor:
        """What a local step descends: a scalar."""
        return cross_entropy(ctx.net(params, batch.x), batch)

    def correction(self, ctx: Context, visit: Visit) -> Tree | None:
        """What is added to every gradient, over the keys that train; None for nothing."""
        return None

    def finish(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        """What the client sends, keeps and reports."""
        upload = {"params": tree.select(trained.params, visit.broadcast["params"])}
        own = tree.select(trained.params, self.kept(ctx))
        return Report(upload, {OWN: own} if own else {}, {"train_loss": trained.loss})


def towards(ctx: Context, params: Params, mean: Tree, times: float) -> Tree:
    """`times` the way from `params` to `mean`, in float64; with `times` 1 it is `mean` to the last bit.

    Only parameters go further than the mean, or less far. Statistics of normalisation layers are replaced by
    it, since a variance that was carried beyond it could be negative.
    """
    moving = set(ctx.net.parameters)
    return {
        key: (1 - times) * params[key].double() + times * value if key in moving else value
        for key, value in mean.items()
    }
