"""Exploiting Shared Representations for Personalized Federated Learning.

Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, arXiv:2102.07078.

Idea: a client first fits its own head to the body that came down, and only then moves the body, so that the
body learns features which suit everybody's best heads.

Wire:
    down    params    the body
    up      params    the trained body, MEAN
    keeps   own       the head; before the first visit the first one, which is the same for all
    server  params    the body, and the first head, which never moves

First come `head_epochs` passes in which only the head moves, then the round's local training, in which only
the body does. Each of the two is a plain SGD started anew, with the same rate and batch size. Where the local
training is given in steps, a pass of the head is as many steps.

Deviations: bodies are averaged by numbers of examples, over the clients that came. The head's passes go over
the batches of the body's first pass, in the same order. While a part stands still its running statistics do
too. There is no model for everybody, so records have no `global_accuracy`.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.algorithms.personal_parts import PersonalParts, find_missing_body
from fedsim.base.parameters import Count
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort
from fedsim.core.client_task import RepeatedBatches
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedRep(PersonalParts):
    """A shared body under heads of the clients' own: the head is fitted first, then the body moves.

    Attributes:
        head_epochs: passes over the client's examples for the head.
    """

    head_epochs: Count = 1

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """A model without a body."""
        return find_missing_body("fedrep", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The body."""
        return ctx.net.body

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The body, once the head has been fitted."""
        return ctx.net.body

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The head's passes, then the body's; the loss of the record is that of the latter."""
        fitted = self.train_locally(
            ctx, self.make_head_task(ctx, task), self.initial_params(ctx, task), ctx.net.head
        )
        moving = self.trainable_keys(ctx, task.broadcast)
        return self.collect_update(ctx, task, self.train_locally(ctx, task, fitted.params, moving))

    def make_head_task(self, ctx: Context, task: ClientTask) -> ClientTask:
        """The visit with the batches of the head's passes."""
        once = self.count_head_steps(ctx, len(task.batches))
        return task._replace(
            batches=RepeatedBatches(RepeatedBatches(task.batches, once), self.head_epochs * once)
        )

    def count_head_steps(self, ctx: Context, steps: int) -> int:
        """The steps of one of the head's passes, where the body makes so many: one epoch's."""
        return steps // ctx.local.epochs if ctx.local.steps is None else steps

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The head's steps, and the body's."""
        fitting = Effort(self.head_epochs * self.count_head_steps(ctx, steps), ctx.net.head)
        return fitting, Effort(steps, ctx.net.body)
