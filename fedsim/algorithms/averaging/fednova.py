"""Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, arXiv:2007.07481.

Idea: a client that makes more local steps goes further, and so would count for more than its examples; the
server therefore averages the directions, each divided by its client's work, and then goes as far as the
cohort went on average.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
            steps     how many local steps it made, GATHER
    keeps   nothing
    server  params

The work of client i is a_i, the sum of the factors with which its gradients entered its way: `Local.reach`,
which covers momentum (the paper's section 4.2) and a decaying rate alike. With p_i its share of the cohort's
examples, the update is

    w <- w - (sum p_i a_i) (sum p_i (w - w_i) / a_i).

It is computed as s times the way from w to m, where m is the mean of the models weighted by p_i / a_i and
s = (sum p_i a_i) (sum p_i / a_i) >= 1. This is the same in exact arithmetic, takes one sum over the cohort,
and is FedAvg bit for bit where all clients make the same number of steps: every a_i is divided by the work of
a client of average size, which cancels, and makes them all exactly 1 there.

Deviations: shares are over the clients that came. Running statistics of BatchNorm go to m, not beyond it. The
paper's server momentum and its proximal variant are left out.

Reference result: see docs/results/curriculum.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import torch

from fedsim.algorithms.fedavg import FedAvg, step_towards
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """Normalised averaging: directions are averaged per unit of local work, against unequal work."""

    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN, "steps": Reduction.GATHER}

    def relative_work(self, ctx: Context, steps: int) -> float:
        """The work a_i of so many local steps, in units of what a client of average size does."""
        usual = ctx.local.steps_for(max(1, ceil(ctx.mean_examples)))
        return ctx.local.total_step_size(steps) / ctx.local.total_step_size(usual)

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """Its examples by its work, n_i / a_i; 0 for a client without examples, which does none."""
        steps = len(task.batches)
        return task.num_examples / self.relative_work(ctx, steps) if steps else 0.0

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """From the model towards the clients' mean, and s times as far."""
        came = zip(reduced.clients, reduced.num_examples, reduced["steps"], strict=True)
        done = [
            (examples, self.relative_work(ctx, int(entry["count"])))
            for client, examples, entry in came
            if client % len(ctx.nets) == ctx.model and examples
        ]
        total = sum(examples for examples, _ in done)
        further = sum(n * work for n, work in done) * sum(n / work for n, work in done) / total**2
        return super().server_update(ctx, params, step_towards(ctx, params, mean, further), reduced)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and how many steps led to it."""
        update = super().make_update(ctx, task, trained)
        steps = {"count": torch.tensor([trained.steps])}
        return update._replace(upload={**update.upload, "steps": steps})
