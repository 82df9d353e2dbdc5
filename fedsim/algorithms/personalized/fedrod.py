"""On Bridging Generic and Personalized Federated Learning for Image Classification.

Chen, Chao, ICLR 2022, arXiv:2107.00778.

Idea: one model learns for everybody under a loss that makes up for a client's unequal classes, and a second
head on its features, which stays with the client, learns what is special there.

Wire:
    down    params    the body and the generic head
    up      params    both, trained, MEAN
    keeps   own       the personal head; zero before the first visit
    server  params

With features h = body(x) and the client's class counts n_c, a local step descends

    CE(G(h) + log n, y)             by the body and the generic head G (balanced softmax),
    CE(stop(G(h)) + P(stop(h)), y)  by the personal head P alone,

where nothing flows back through `stop`. The two move different keys, so one step on the sum is a step on
each. A client predicts G(h) + P(h), the server's model G(h).

The counts are of all the client's examples. A class that it lacks has log 0: it is out of the softmax and
gets no gradient. Where an example has several yes-or-no labels, the same is done with the two answers to
each: log of yes over no is added to its logit.

Deviations: the mean is over the clients that came. A personal head starts at zero, so that a client which
never came has the server's model; the paper does not say. The variant whose personal heads come from a
hypernetwork is left out. `train_loss` is the sum of the two losses.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import PersonalModels
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel, cross_entropy

PREFIX = "personal."
"""What the personal head's keys have before the generic head's names."""

ABSENT = -1e4
"""Stands for log 0: e to it is 0, but nothing times it is no NaN, as in the rows that pad a batch."""


@dataclass(frozen=True, kw_only=True)
class FedROD(FedAvg, PersonalModels):
    """A generic model under a balanced loss, and a second head of each client's own."""

    stateful: ClassVar[bool] = True

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The personal head."""
        return [PREFIX + key for key in ctx.net.keys if key in ctx.net.head]

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The generic model and the personal head."""
        return [*ctx.net.parameters, *self.private_keys(ctx)]

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """What came down, and the personal head."""
        began = super().initial_params(ctx, task)
        zeros = {PREFIX + key: torch.zeros_like(began[key]) for key in ctx.net.keys if key in ctx.net.head}
        return {**zeros, **began}

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The balanced loss of the generic head plus the plain one of both heads together."""
        features = ctx.net.features(params, batch.x)
        generic = ctx.net.classify(params, features)
        balanced = cross_entropy(generic + log_label_prior(task, several=batch.y.dim() == 2), batch)
        both = generic.detach() + ctx.net.classify(select_personal_head(params), features.detach())
        return balanced + cross_entropy(both, batch)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Every step moves the generic model and the personal head."""
        return (Effort(steps, ctx.net.parameters, extra=ctx.net.count_parameters(ctx.net.block_names[-1])),)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The generic model goes up, the personal head stays."""
        update = super().make_update(ctx, task, trained)
        return update._replace(model=tree.drop(trained.params, self.private_keys(ctx)))

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """What both heads say together."""
        features = ctx.net.features(model, x)
        return ctx.net.classify(model, features) + ctx.net.classify(select_personal_head(model), features)


def select_personal_head(params: Params) -> Params:
    """The personal head under the generic head's names."""
    return {key.removeprefix(PREFIX): value for key, value in params.items() if key.startswith(PREFIX)}


def log_label_prior(task: ClientTask, several: bool) -> Tensor:
    """What is added to the logits, `[classes]`: log n_c, or log of yes over no with several labels.

    Labels that are not known are neither.
    """
    counts, known = task.label_counts, task.known_counts
    return _log(counts) - _log(known - counts) if several else _log(counts)


def _log(counts: Tensor) -> Tensor:
    return torch.where(counts > 0, counts.clamp(min=1).log(), torch.full_like(counts, ABSENT))
