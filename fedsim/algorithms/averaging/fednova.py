"""Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, arXiv:2007.07481.

Idea: a client with more local steps moves further and gets more weight than its examples justify. The server
therefore averages the clients' updates, each divided by its local work, and multiplies the mean by the
cohort's average work.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
            steps     the number of its local steps, GATHER
    keeps   nothing
    server  params

The work a_i of client i is the sum of the factors with which its gradients enter its update:
`LocalTraining.total_step_size`, which covers momentum (the paper's section 4.2) and a decaying rate. With p_i
the client's share of the cohort's examples, the update is

    w <- w - (sum p_i a_i) (sum p_i (w - w_i) / a_i).

fedsim computes this update as w + s (m - w). m is the mean of the models, weighted by p_i / a_i, and
s = (sum p_i a_i) (sum p_i / a_i) >= 1. The two forms are equal in exact arithmetic; the second one needs only
one sum over the cohort. Every a_i is divided by the work of a client of average size, which changes nothing.
If all clients make the same number of steps, every a_i is then exactly 1, and the update is FedAvg's bit for
bit.

Deviations: shares are over the cohort. Running statistics of BatchNorm move to m, not beyond it. The paper's
server momentum and its proximal variant are left out.

Reference result: see docs/results/curriculum.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsim.algorithms.fedavg import FedAvg, step_towards
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedAvg with normalised averaging: updates are averaged per unit of local work."""

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "steps": Reduction.GATHER}
    assumes_sgd: ClassVar[bool] = True

    def relative_work(self, ctx: Context, steps: int) -> float:
        """The work a_i of a number of local steps, relative to a client of average size without a limit."""
        local = ctx.usual_local
        return local.total_step_size(steps) / local.total_step_size(ctx.usual_steps)

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The client's examples divided by its work, n_i / a_i; 0 for a client without examples."""
        steps = len(task.batches)
        return task.num_examples / self.relative_work(ctx, steps) if steps else 0.0

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """The step from the model to the clients' mean, s times."""
        came = zip(reduced.clients, reduced.num_examples, reduced["steps"], strict=True)
        done = [
            (examples, self.relative_work(ctx, int(entry["count"])))
            for client, examples, entry in came
            if ctx.is_of_architecture(client) and examples
        ]
        total = sum(examples for examples, _ in done)
        further = sum(n * work for n, work in done) * sum(n / work for n, work in done) / total**2
        return super().server_update(ctx, params, step_towards(ctx, params, mean, further), reduced)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and the number of its local steps."""
        update = super().make_update(ctx, task, trained)
        steps = {"count": torch.tensor([trained.steps])}
        return update._replace(upload={**update.upload, "steps": steps})
