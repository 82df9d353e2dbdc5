"""On Bridging Generic and Personalized Federated Learning for Image Classification.

Chen, Chao, ICLR 2022, arXiv:2107.00778.

Idea: one generic model learns for all clients with a loss that balances each client's unequal classes, and a
second head on its features stays with the client and learns the client's own distribution.

Wire:
    down    params    the body and the generic head
    up      params    both, trained, MEAN
    keeps   own       the personal head; zero before the first round
    server  params

With features h = body(x) and the client's class counts n_c, a local step descends

    CE(G(h) + log n, y)             by the body and the generic head G (balanced softmax),
    CE(stop(G(h)) + P(stop(h)), y)  by the personal head P alone,

where no gradient flows back through `stop`. The two losses move different keys: one step on their sum is a
step on each. A client predicts G(h) + P(h), the server's model G(h).

The counts are over all the client's examples. A class without examples has log 0: it drops out of the softmax
and gets no gradient. With several yes-or-no labels per example, each label's two answers are balanced in the
same way: log of yes over no is added to its logit.

Deviations: the mean is over the cohort. A personal head starts at zero, which gives a client outside all
cohorts the server's model; the paper leaves this open. With `local.clip_norm`, both losses' gradients
are clipped by their joint norm, so that the personal head has an influence on the generic model. The variant
with personal heads from a hypernetwork is left out. `train_loss` is the sum of the two losses.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import find_empty_head, find_missing_features
from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import PersonalModels
from fedsim.errors import FieldError
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Net, Params
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import cross_entropy

PERSONAL_PREFIX = "personal."
"""Prefix of the personal head's keys, before the generic head's names."""

ABSENT = -1e4
"""The value for log 0: e^ABSENT is 0, and 0 * ABSENT is 0 and not NaN, as padding rows need."""


@dataclass(frozen=True, kw_only=True)
class FedROD(FedAvg, PersonalModels):
    """A generic model with a balanced loss, and a second, personal head for each client."""

    purposes: ClassVar[tuple[str, ...]] = ("personalisation", "label-skew")
    further_example_use: ClassVar[str] = "label counts"
    stateful: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model whose head is empty, or cannot run alone."""
        return find_empty_head("fedrod", net) or find_missing_features("fedrod", net)

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The personal head."""
        return [PERSONAL_PREFIX + key for key in ctx.net.keys if key in ctx.net.head]

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The generic model and the personal head."""
        return [*ctx.net.parameters, *self.private_keys(ctx)]

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The broadcast model, and the personal head."""
        began = super().initial_params(ctx, task)
        zeros = {
            PERSONAL_PREFIX + key: torch.zeros_like(began[key]) for key in ctx.net.keys if key in ctx.net.head
        }
        return {**zeros, **began}

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The balanced loss of the generic head plus the plain one of both heads together."""
        features = ctx.net.features(params, batch.x)
        generic = ctx.net.classify(params, features)
        balanced = cross_entropy(generic + log_label_prior(task, several=batch.y.dim() == 2), batch)
        both = generic.detach() + ctx.net.classify(select_personal_head(params), features.detach())
        return balanced + cross_entropy(both, batch)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Every step trains the generic model and the personal head."""
        head_size = ctx.net.count_parameters(ctx.net.block_names[-1])
        return (Effort(steps, ctx.net.parameters, extra_parameters=head_size),)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The generic model for the server; the personal head for the client state."""
        update = super().make_update(ctx, task, trained)
        return update._replace(model=tree.drop(trained.params, self.private_keys(ctx)))

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The sum of both heads' logits."""
        features = ctx.net.features(model, x)
        return ctx.net.classify(model, features) + ctx.net.classify(select_personal_head(model), features)


def select_personal_head(params: Params) -> Params:
    """The personal head, under the generic head's names."""
    return {
        key.removeprefix(PERSONAL_PREFIX): value
        for key, value in params.items()
        if key.startswith(PERSONAL_PREFIX)
    }


def log_label_prior(task: ClientTask, several: bool) -> Tensor:
    """The terms added to the logits, `[classes]`: log n_c, or with several labels log of yes over no.

    Unknown labels count as neither.
    """
    counts, known = task.label_counts, task.known_counts
    return _log_or_absent(counts) - _log_or_absent(known - counts) if several else _log_or_absent(counts)


def _log_or_absent(counts: Tensor) -> Tensor:
    return torch.where(counts > 0, counts.clamp(min=1).log(), torch.full_like(counts, ABSENT))
