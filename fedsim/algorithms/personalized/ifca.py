"""An Efficient Framework for Clustered Federated Learning (IFCA).

Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020, arXiv:2006.04088.

Idea: the server keeps one model for each cluster of clients, and a client trains the model that has the
smallest loss on its examples.

Wire:
    down    models    all k models
    up      params    the trained model, MEAN; counted as one model
            cluster   the number of its cluster, GATHER; not sent with one cluster
    keeps   nothing
    server  k models

Rounds are Algorithm 1 with model averaging (option II): the next model of a cluster is the mean over the
clients of the cohort that chose it. A cluster that nobody chose keeps its model. The loss is the mean over
all examples of the client, in evaluation mode; the first of equal clusters is chosen. The first cluster
begins with FedAvg's first model, and each other one with random weights of its own.

Deviations: models are averaged by numbers of examples; the paper takes a plain mean. Gradient averaging
(option I), shared layers with clustered heads, and the choice among several random beginnings are left out. A
client predicts by the model that it would choose. There is no global model, and records have no
`global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree, wire
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import PayloadAccounting
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params


@dataclass(frozen=True, kw_only=True)
class IFCAState(ServerState):
    """The models of the clusters: {"0": model, "1": ...}; with several architectures, such a dict for each.

    Attributes:
        sizes: number of clients of the last cohort in each cluster.
    """

    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class IFCA(FedAvg, PayloadAccounting):
    """FedAvg of several models, of which each client trains the best for it; `clusters: 1` is FedAvg.

    Attributes:
        clusters: number of models, k.
    """

    purposes: ClassVar[tuple[str, ...]] = ("clustering", "personalisation")
    further_example_use: ClassVar[str] = "losses under the model of each cluster"

    clusters: Annotated[int, Range(1, 1000)] = 2

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "cluster": Reduction.GATHER}
    deploys_models: ClassVar[bool] = False

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error if all clusters would begin with the same given weights."""
        if self.clusters == 1 or not set(net.parameters) <= net.initial.keys():
            return ()
        message = f"all clusters would begin with the given weights of {net.name}, and stay equal"
        return (FieldError("clusters", self.clusters, message, "1, or a model without model.init"),)

    # server

    def init_server_state(self, ctx: Context) -> IFCAState:
        """New models of every cluster and architecture, made from the seed."""
        models = {key: self._init_models(each) for key, each in ctx.architectures.items()}
        return IFCAState(params=models if len(ctx.nets) > 1 else models["0"], sizes=())

    def _init_models(self, ctx: Context) -> Tree:
        # Each number is a random stream; cluster 0 has FedAvg's.
        numbers = range(ctx.architecture, self.clusters * len(ctx.nets), len(ctx.nets))
        return {str(cluster): ctx.net.init(ctx.seed, number) for cluster, number in enumerate(numbers)}

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The models of all clusters."""
        return {"models": ctx.select_architecture(state.params)}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """Of an upload the bytes of one model: the parts of other clusters are zeros and do not travel."""
        return wire.payload_bytes(payload["0"] if name == "params" else payload)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> IFCAState:
        """The mean model of each cluster that was chosen."""
        chosen = [int(entry["number"]) if entry else 0 for entry in reduced["cluster"]]
        params = ctx.update_architectures(
            lambda arch_ctx, models, mean: self._average_clusters(arch_ctx, models, mean, chosen, reduced),
            state.params,
            reduced["params"],
        )
        return IFCAState(params=params, sizes=tuple(map(chosen.count, range(self.clusters))))

    def _average_clusters(
        self, ctx: Context, models: Tree, mean: Tree, chosen: Sequence[int], reduced: ReducedUpdates
    ) -> Tree:
        """The next models of one architecture.

        Args:
            ctx: the round, for this architecture.
            models: the present models.
            mean: over all clients, with zeros for clients of other clusters.
            chosen: the cluster of each client, in cohort order.
            reduced: all reduced updates.
        """
        weights, found = [0.0] * self.clusters, dict(models)
        for client, weight, cluster in zip(reduced.clients, reduced.weights, chosen, strict=True):
            weights[cluster] += weight if ctx.is_of_architecture(client) else 0
        for cluster, weight in enumerate(weights):
            if weight:
                own = tree.scale(mean[str(cluster)], sum(weights) / weight)
                found[str(cluster)] = self.server_update(ctx, models[str(cluster)], own, reduced)
        return found

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The number of clients of the cohort in each cluster."""
        return {"clusters": list(state.sizes)}

    # client

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The model with the smallest loss on the client's examples."""
        return self._select_model(task, self.choose_cluster(ctx, task))

    def _select_model(self, task: ClientTask, cluster: Tensor) -> Params:
        models = list(task.broadcast["models"].values())
        if len(models) == 1:
            return dict(models[0])
        return tree.map(lambda *leaves: torch.stack(leaves).index_select(0, cluster.view(1))[0], *models)

    @torch.no_grad()
    def choose_cluster(self, ctx: Context, task: ClientTask) -> Tensor:
        """The cluster whose model has the smallest loss on the client's examples: its number, a scalar."""
        models = task.broadcast["models"]
        if len(models) == 1:
            return torch.zeros((), dtype=torch.int64, device=task.device)
        losses = torch.zeros(len(models), dtype=torch.float64, device=task.device)
        for batch in task.examples.batches():
            each = [ctx.learning_task.example_losses(ctx.net(m, batch.x), batch.y) for m in models.values()]
            losses += torch.stack(each).double().sum(1)
        return losses.nan_to_num(torch.inf).argmin()

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The training of the chosen model."""
        cluster = self.choose_cluster(ctx, task)
        start = self._select_model(task, cluster)
        trained = self.train_locally(ctx, task, start, self.trainable_keys(ctx, task.broadcast))
        parts = {
            key: tree.map(
                lambda leaf, mine=cluster == int(key): torch.where(mine, leaf, torch.zeros_like(leaf)),
                trained.params,
            )
            for key in task.broadcast["models"]
        }
        number = {"number": cluster} if self.clusters > 1 else {}
        metrics = {"train_loss": trained.loss}
        return ClientUpdate({"params": parts, "cluster": number}, {}, metrics, trained.params)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """A pass of all models over the examples, and the training of one."""
        training = Effort(steps, ctx.net.parameters)
        if self.clusters == 1:
            return (training,)
        return (ctx.local.count_forward_passes(steps, self.clusters), training)
