"""FedDisco: Federated Learning with Discrepancy-Aware Collaboration.

Ye, Xu, Wang, Xu, Chen, Wang, ICML 2023, arXiv:2305.19229.

Idea: a client's weight rises with its number of examples, and falls with the distance of its labels from the
uniform distribution.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
            labels    its label counts, GATHER; once, in its first round
            models    the trained model, GATHER; free, because `params` has sent it
            distance  d_k, GATHER; free, because the server can compute it from the label counts
    keeps   told      whether it has sent its label counts
    server  params

With p_k the client's share of the cohort's examples and d_k = KL(its labels || uniform) as a share of the
cohort's sum, its weight q_k is proportional to max(0, p_k - a d_k + b). With `fairness.tilt`, p_k is the
client's share of the tilted numbers of examples.

Deviations: shares and weights are over the cohort. If all q_k are 0, the weights are p_k. Clients without
examples have the weight 0. The weights are known only at the end of the round, and the server holds all
models of the cohort until then.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedDisco(FedAvg):
    """FedAvg whose weights depend on the discrepancy of the labels; `a: 0, b: 0` is FedAvg.

    Attributes:
        a: weight of the discrepancy, subtracted from a client's share of the examples, >= 0.
        b: constant added to each client's share, >= 0.
    """

    a: Annotated[float, Range(minimum=0)] = 0.5
    b: Annotated[float, Range(minimum=0)] = 0.1

    purposes: ClassVar[tuple[str, ...]] = ("label-skew",)
    further_example_use: ClassVar[str] = "label counts"
    uploads: ClassVar = {
        **FedAvg.uploads,
        "labels": Reduction.GATHER,
        "models": Reduction.GATHER,
        "distance": Reduction.GATHER,
    }
    free_uploads: ClassVar = frozenset({"models", "distance"})
    stateful: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and in the client's first round its label counts."""
        update = super().make_update(ctx, task, trained)
        labels = {} if task.client_state else {"counts": task.label_counts.to(torch.int32)}
        more = {
            "labels": labels,
            "models": update.upload["params"],
            "distance": {"nats": discrepancy(task.label_counts)},
        }
        return update._replace(upload={**update.upload, **more}, client_state={"told": torch.ones(())})

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """A step to the mean of the clients' models with the weights q."""
        mine = [at for at, client in enumerate(reduced.clients) if ctx.is_of_architecture(client)]
        weights = self.discrepancy_weights(
            [reduced.weights[at] for at in mine], [float(reduced["distance"][at]["nats"]) for at in mine]
        )
        if (self.a or self.b) and weights.any():
            models = [reduced["models"][at] for at in mine]
            mean = tree.weighted_sum(models, weights.tolist())
        return super().server_update(ctx, params, mean, reduced)

    def discrepancy_weights(
        self, weights: Sequence[float], distances: Sequence[float]
    ) -> NDArray[np.float64]:
        """The weights q_k of a cohort, float64 `[clients]`; they sum to 1, or all are 0.

        Args:
            weights: the number of examples of each client, tilted with `fairness.tilt`.
            distances: KL(the client's labels || uniform) of each, in nats.
        """
        given, far = np.asarray(weights, np.float64), np.asarray(distances, np.float64)
        shares = given / (given.sum() or 1.0)
        raw = np.maximum(0, shares - self.a * far / (far.sum() or 1.0) + self.b) * (given > 0)
        total = raw.sum()
        return raw / total if total > 0 else np.zeros_like(raw)


def discrepancy(label_counts: Tensor) -> Tensor:
    """KL(labels || uniform) in nats, a scalar: 0 for equal counts and for none, log C for a single class.

    Args:
        label_counts: float32 `[classes]`.
    """
    share = label_counts / label_counts.sum().clamp(min=1)
    return torch.xlogy(share, share * len(share)).sum()
