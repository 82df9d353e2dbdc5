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
from fedsim.core import (
    Algorithm,
    Batch,
    ClientTask,
    ClientUpdate,
    Context,
    Effort,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.learning_tasks.tasks import ALL_TASKS
from fedsim.models.net import Params
from fedsim.training.local_loop import LocalLoop, TrainedModel, run_local_loop
from fedsim.training.losses import supervised_loss

PRIVATE_PARAMS = "own"
"""The key of a client's private parameters in its client state."""


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging (Algorithm 1): clients train the global model, the server averages their models.

    Most papers change one of its extension points: the keys that travel (`shared_keys`), stay with the client
    (`private_keys`) or train (`trainable_keys`), the model to begin with (`initial_params`), the loss, the
    gradients (`gradient_correction`), the update (`make_update`), the next model (`server_update`).
    """

    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN}
    heterogeneous: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = True
    further_example_use: ClassVar[str] = ""
    tasks: ClassVar[Collection[str]] = ALL_TASKS

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The parameters and buffers that travel in this round, down and up."""
        return ctx.net.keys

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The keys that stay with each client; only where the algorithm is stateful."""
        return ()

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The keys that train in a client's round, given the broadcast."""
        return ctx.net.parameters

    def init_server_state(self, ctx: Context) -> ServerState:
        """A new model of every architecture, made from the seed."""
        if len(ctx.nets) == 1:
            return ServerState(params=ctx.init_params())
        models = {key: each.init_params() for key, each in ctx.architectures.items()}
        return ServerState(params=models)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The shared part of the global model."""
        return {"params": tree.select(ctx.select_architecture(state.params), self.shared_keys(ctx, state))}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The server state with the next model of each architecture of the cohort."""
        params = ctx.update_architectures(
            lambda arch_ctx, model, mean: self.server_update(arch_ctx, model, mean, reduced),
            state.params,
            reduced["params"],
        )
        return replace(state, params=params)

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """The server's next model of one architecture: the cohort's mean, rounded once from float64.

        Args:
            ctx: the round, for this architecture.
            params: the present model.
            mean: of the clients' models, over the shared keys.
            reduced: all reduced updates, of all architectures.
        """
        return {**params, **tree.cast_like(mean, tree.select(params, mean))}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Local training on the loss, from the initial parameters."""
        moving = self.trainable_keys(ctx, task.broadcast)
        trained = self.train_locally(ctx, task, self.initial_params(ctx, task), moving)
        return self.collect_update(ctx, task, trained)

    def train_locally(
        self, ctx: Context, task: ClientTask, start: Params, trainable: Collection[str]
    ) -> TrainedModel:
        """Local training on the loss over the batches of the task, where only these keys train."""
        correction = self.gradient_correction(ctx, task)
        return run_local_loop(LocalLoop(ctx, task, start, self.loss, trainable, correction))

    def collect_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The result of `make_update`, with the client's trained model."""
        update = self.make_update(ctx, task, trained)
        return update if update.model is not None else update._replace(model=trained.params)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Every step trains the trainable keys."""
        return (Effort(steps, self.trainable_keys(ctx, self.broadcast(ctx, state))),)

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The broadcast, the private parameters, and for all other keys the first values from the seed."""
        received: Params = task.broadcast["params"]
        private = task.client_state.get(PRIVATE_PARAMS, {})
        is_complete = len(received) == len(ctx.net.keys)
        if is_complete and not private:
            return received
        initial = {} if is_complete else ctx.cached_init_params(task.device)
        return {**initial, **received, **private}

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The loss of a local step, a scalar."""
        return supervised_loss(ctx, ctx.net(params, batch.x), batch)

    def gradient_correction(self, ctx: Context, task: ClientTask) -> Tree | None:
        """A tree that is added to every gradient, over the trainable keys; None for nothing."""
        return None

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The client's upload, its state and its metrics."""
        upload = {"params": tree.select(trained.params, task.broadcast["params"])}
        private = tree.select(trained.params, self.private_keys(ctx))
        client_state = {PRIVATE_PARAMS: private} if private else {}
        return ClientUpdate(upload, client_state, {"train_loss": trained.loss})


def step_towards(ctx: Context, params: Params, mean: Tree, times: float) -> Tree:
    """Go `times` the way from `params` to `mean`, in float64; with `times` 1 it is `mean` to the last bit.

    Statistics of normalisation layers always become those of `mean`: a variance beyond it could be negative.
    """
    moving = set(ctx.net.parameters)
    return {
        key: (1 - times) * params[key].double() + times * value if key in moving else value
        for key, value in mean.items()
    }


def zero_weights(ctx: Context, params: Params) -> Tree:
    """Zeros with the shapes of the parameters that may train, without statistics of normalisation layers."""
    return tree.zeros_like(tree.select(params, ctx.net.parameters))
