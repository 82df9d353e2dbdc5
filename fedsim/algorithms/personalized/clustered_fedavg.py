"""FedAvg within clusters of clients with similar labels, the clusters of ACE-pFL.

He, Bai, Li, Chen, Du, IEEE Transactions on Networking 2025, doi:10.1109/TON.2025.3527467.

Idea: the server clusters the clients once, by the earth mover's distance of their label distributions, and
each cluster trains a model of its own.

Wire:
    down    model     the model of the client's cluster
            cluster   free: the client's cluster, which a real server applies itself
            census    once: a client's label distribution (see `fedsim.core.census`)
    up      params    the trained model, MEAN; counted as one model
            cluster   the number of its cluster, GATHER; free, because the server knows it
            census    once: the distance to that distribution
    keeps   nothing
    server  a model for each cluster, the cluster of each client

The clusters are those of Section III-B and Algorithm 2: k-means over the distances to one random client
(`vector`), or over the distances between all clients (`matrix`). All clusters begin with FedAvg's first
model. A cluster without a client in the cohort keeps its model.

Deviations: the paper clusters clients to weigh their predictions, and averages no models. This is fedsim's
baseline for it, and for `ifca` and `cfl`, which cluster by losses and by updates. With `vector`, two clients
without a class in common with the random client are equally far from it, and may come into one cluster
whatever their classes; `matrix` keeps them apart, and takes a distance for each pair of clients. Noise on the
label distributions is left out. A client predicts by the model of its cluster. There is no global model, and
records have no `global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree, wire
from fedsim.base.parameters import Count, Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import ClientInstructions, LabelCensus, PayloadAccounting
from fedsim.core.census import CensusAnswers, CensusQuestion, Ground
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Params
from fedsim.techniques.clustering import cluster_features, mean_cluster_distances
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class ClusteredState(ServerState):
    """The models of the clusters: {"0": model, "1": ...}.

    Attributes:
        clusters: the cluster of each client, int64 `[N]`.
        mean_emd: the mean distance between the clients of each cluster.
    """

    clusters: Tensor
    mean_emd: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClusteredFedAvg(FedAvg, ClientInstructions, LabelCensus, PayloadAccounting):
    """FedAvg in clusters of clients with similar labels; `clusters: 1` is FedAvg.

    Attributes:
        clusters: largest number of clusters.
        clustering: distances for the clusters: to one random client (`vector`), or between all (`matrix`).
        ground: cost of moving a unit in the distances: 1 between any two classes (`identity`), or the
            difference of two frequencies, whatever their classes (`sorted`).
        selection: number that selects the client of the distances (`vector`): each number draws another one.
    """

    purposes: ClassVar[tuple[str, ...]] = ("clustering", "personalisation")
    further_example_use: ClassVar[str] = "label distributions"

    clusters: Count = 3
    clustering: Literal["vector", "matrix"] = "vector"
    ground: Ground = "identity"
    selection: Annotated[int, Range(minimum=0)] = 0

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "cluster": Reduction.GATHER}
    free_uploads: ClassVar = frozenset({"cluster"})
    tasks: ClassVar = CLASS_TASKS  # clients are compared by their class counts
    heterogeneous: ClassVar[bool] = False
    deploys_models: ClassVar[bool] = False

    # server

    def init_server_state(self, ctx: Context) -> ClusteredState:
        """FedAvg's first model, and one cluster of all clients."""
        clusters = torch.zeros(ctx.num_clients, dtype=torch.int64)
        return ClusteredState(params={"0": ctx.init_params()}, clusters=clusters)

    def plan_census(self, ctx: Context) -> CensusQuestion | None:
        """The question for the clients' label distributions; None for one cluster."""
        if self.clusters == 1:
            return None
        return CensusQuestion(ask=self.clustering, ground=self.ground, selection=self.selection)

    def apply_census(self, ctx: Context, state: ClusteredState, answers: CensusAnswers) -> ClusteredState:
        """The clusters, all with the first model."""
        clusters = cluster_features(answers.distances, self.clusters, ctx.seed)
        return replace(
            state,
            params={str(cluster): state.params["0"] for cluster in range(int(clusters.max()) + 1)},
            clusters=torch.from_numpy(clusters),
            mean_emd=tuple(mean_cluster_distances(answers.shares, clusters, self.ground)),
        )

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """No payloads that are the same for all clients."""
        return {}

    def instruct_client(self, ctx: Context, state: ClusteredState, client: int) -> Mapping[str, Tree]:
        """The model of the client's cluster, and which cluster this is, as a row of zeros with a one."""
        mine = int(state.clusters[client])
        return {
            "model": state.params[str(mine)],
            "cluster": {"is_mine": torch.arange(len(state.params)) == mine},
        }

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """Of an upload the bytes of one model: the parts of other clusters are zeros and do not travel."""
        if name == "cluster":
            return 0  # what the server applies itself
        return wire.payload_bytes(payload["0"] if name == "params" else payload)

    def aggregate(self, ctx: Context, state: ClusteredState, reduced: ReducedUpdates) -> ClusteredState:
        """The mean model of each cluster with clients in the cohort."""
        weights, params = [0.0] * len(state.params), dict(state.params)
        for client, weight in zip(reduced.clients, reduced.weights, strict=True):
            weights[int(state.clusters[client])] += weight
        for cluster, weight in enumerate(weights):
            if weight:
                # The mean is over the whole cohort, with zeros for the clients of other clusters.
                own = tree.scale(reduced["params"][str(cluster)], sum(weights) / weight)
                params[str(cluster)] = self.server_update(ctx, params[str(cluster)], own, reduced)
        return replace(state, params=params)

    def describe_round(self, ctx: Context, state: ClusteredState) -> Mapping[str, Any]:
        """The number of clients in each cluster, and the mean distance between them."""
        return {"clusters": torch.bincount(state.clusters).tolist(), "mean_emd": list(state.mean_emd)}

    # client

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The model of the client's cluster."""
        params: Params = task.instruction["model"]
        return params

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The trained model as a part of the upload, with zeros for the other clusters."""
        is_mine: Tensor = task.instruction["cluster"]["is_mine"]
        parts = {
            str(cluster): tree.map(
                lambda leaf, mine=mine: torch.where(mine, leaf, torch.zeros_like(leaf)), trained.params
            )
            for cluster, mine in enumerate(is_mine)
        }
        number = {"number": is_mine.int().argmax()}
        return ClientUpdate({"params": parts, "cluster": number}, {}, {"train_loss": trained.loss})
