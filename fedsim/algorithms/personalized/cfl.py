"""Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints.

Sattler, Müller, Samek, IEEE TNNLS 2020, arXiv:1910.01991.

Idea: near a stationary point of the common loss, clients of other distributions pull in other directions; the
server then splits them into two clusters by the cosine similarity of their updates.

Wire:
    down    model     the model of the client's cluster
    up      params    the trained model, MEAN
            models    the trained model, GATHER; free, because `params` has sent it
    keeps   nothing
    server  a model for each cluster, the cluster of each client

With D_i the change of client i's model over the parameters and D the mean change of a cluster's clients, the
cluster is split if |D| < eps_1 and max |D_i| > eps_2. Of all cuts into two parts, the server takes the one
whose largest cosine similarity between a client of one part and a client of the other is smallest
(Algorithm 1: single linkage). Each part then takes the mean of its own models, and trains apart.

Deviations: a cluster splits only in a round to which all its clients came, if it has at least three with
examples, and after `start_round` rounds, as in the authors' code. A client without examples stays in the old
cluster. Updates are averaged by numbers of examples; the authors'
code takes plain means, and complete linkage. The test by an estimate of gamma is left out, as in their code.
All models are kept; the tree of earlier clusters is not. A client predicts by the model of its cluster. There
is no global model, and records have no `global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import ClientInstructions
from fedsim.core.census import Real
from fedsim.models.net import Params
from fedsim.techniques.clustering import bisect_by_similarity
from fedsim.techniques.late_starts import warn_of_late_start
from fedsim.training.local_loop import TrainedModel

FEWEST = 3
"""Smallest number of clients of a cluster that is split."""


@dataclass(frozen=True, kw_only=True)
class CFLState(ServerState):
    """The models of the clusters: {"0": model, "1": ...}.

    Attributes:
        clusters: the cluster of each client, int64 `[N]`.
        norms: of the mean and of the largest update of each cluster in the last round, before any split.
    """

    clusters: Tensor
    norms: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CFL(FedAvg, ClientInstructions):
    """FedAvg whose clients are split into clusters where their updates disagree; `eps_1: 0` is FedAvg.

    Attributes:
        eps_1: norm of a cluster's mean update below which it may be split, >= 0.
        eps_2: norm that the largest update of a client must exceed for a split, >= 0.
        start_round: rounds of plain FedAvg before the first split; a run of no more rounds has none.
    """

    purposes: ClassVar[tuple[str, ...]] = ("clustering", "personalisation")

    eps_1: Annotated[float, Range(minimum=0)] = 0.4
    eps_2: Annotated[float, Range(minimum=0)] = 1.6
    start_round: Annotated[int, Range(minimum=0)] = 20

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "models": Reduction.GATHER}
    free_uploads: ClassVar = frozenset({"models"})
    heterogeneous: ClassVar[bool] = False
    deploys_models: ClassVar[bool] = False

    # server

    def init_server_state(self, ctx: Context) -> CFLState:
        """FedAvg's first model, and one cluster of all clients; a warning if no round may split it."""
        if self.eps_1:
            warn_of_late_start(ctx, "algorithm.start_round", self.start_round, "cfl trains as fedavg does")
        clusters = torch.zeros(ctx.num_clients, dtype=torch.int64)
        return CFLState(params={"0": ctx.init_params()}, clusters=clusters)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """No payloads that are the same for all clients."""
        return {}

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The model of the client's cluster."""
        return {"model": state.params[str(int(state.clusters[client]))]}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> CFLState:
        """Split the clusters whose clients disagree; then each cluster takes the mean of its models."""
        came = {client: row for row, client in enumerate(reduced.clients)}
        clusters, params, norms = state.clusters.clone(), dict(state.params), list[tuple[float, float]]()
        for number, model in state.params.items():
            members = torch.nonzero(state.clusters == int(number)).flatten()
            present = [came[client] for client in members.tolist() if client in came]
            # A client without examples has no update, and would be a cluster of its own.
            rows = [row for row in present if reduced.num_examples[row]]
            changes = self.compute_changes(ctx, model, rows, reduced)
            norms.append(measure_changes(changes, [reduced.weights[row] for row in rows]))
            apart = None
            if len(present) == len(members) and len(rows) >= FEWEST and self.is_split(ctx, *norms[-1]):
                apart = bisect_by_similarity(cosine_similarities(changes))
            if apart is None:
                params[number] = self._average(ctx, model, rows, reduced)
                continue
            new = str(len(params))
            for part, inside in ((number, ~apart), (new, apart)):
                own = [row for row, mine in zip(rows, inside, strict=True) if mine]
                params[part] = self._average(ctx, model, own, reduced)
            moved = [reduced.clients[row] for row, mine in zip(rows, apart, strict=True) if mine]
            clusters[moved] = int(new)
        return CFLState(params=params, clusters=clusters, norms=tuple(norms))

    def is_split(self, ctx: Context, mean: float, largest: float) -> bool:
        """Whether the norms of its mean and its largest update let a cluster split; not if they are NaN."""
        return ctx.round >= self.start_round and mean < self.eps_1 and largest > self.eps_2

    def compute_changes(
        self, ctx: Context, model: Params, rows: Sequence[int], reduced: ReducedUpdates
    ) -> Real:
        """The changes of some clients' parameters, float64 `[clients, parameters]`.

        Args:
            ctx: the round.
            model: the model with which these clients began.
            rows: their positions in the cohort.
            reduced: the models of the cohort.
        """
        names = ctx.net.parameters
        before = tree.flatten(tree.select(model, names))
        after = [tree.flatten(tree.select(reduced["models"][row], names)) for row in rows]
        return np.stack([(each - before).numpy() for each in after]) if rows else np.zeros((0, len(before)))

    def _average(self, ctx: Context, model: Params, rows: Sequence[int], reduced: ReducedUpdates) -> Params:
        """The weighted mean of the models of some clients; without weights the present model."""
        total = sum(reduced.weights[row] for row in rows)
        if not total:
            return model
        mean = reduced["params"]  # of the whole cohort
        if len(rows) < len(reduced.clients):
            shares = [reduced.weights[row] / total for row in rows]
            mean = tree.weighted_sum([reduced["models"][row] for row in rows], shares)
        return self.server_update(ctx, model, mean, reduced)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The number of clients in each cluster, and the norms of the updates of the clusters before it."""
        mean, largest = ([round(pair[at], 6) for pair in state.norms] for at in (0, 1))
        sizes = torch.bincount(state.clusters).tolist()
        return {"clusters": sizes, "mean_update_norms": mean, "largest_update_norms": largest}

    # client

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The model of the client's cluster."""
        params: Params = task.instruction["model"]
        return params

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The trained model, for the mean and for the comparison of updates."""
        model = dict(trained.params)
        return ClientUpdate({"params": model, "models": model}, {}, {"train_loss": trained.loss})


def measure_changes(changes: Real, weights: Sequence[float]) -> tuple[float, float]:
    """The norm of the weighted mean of some updates, and the largest norm of one; 0 without weights.

    Args:
        changes: float64 `[clients, parameters]`.
        weights: of the clients.
    """
    if not sum(weights):
        return 0.0, 0.0
    mean = np.average(changes, axis=0, weights=weights)
    return float(np.linalg.norm(mean)), float(np.linalg.norm(changes, axis=1).max())


def cosine_similarities(changes: Real) -> Real:
    """The cosine similarities of updates, float64 `[clients, clients]`; 0 for an update of zeros."""
    norms = np.linalg.norm(changes, axis=1, keepdims=True)
    directions = changes / np.where(norms > 0, norms, 1)
    found: Real = directions @ directions.T
    return found
