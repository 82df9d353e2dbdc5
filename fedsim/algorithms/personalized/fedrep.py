"""Exploiting Shared Representations for Personalized Federated Learning.

Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, arXiv:2102.07078.

Idea: a client first fits its own head to the broadcast body, and then trains the body, which learns features
that suit the best heads of all clients.

Wire:
    down    params    the body
    up      params    the trained body, MEAN
    keeps   own       the head; before the first round the initial head, the same for all
    server  params    the body, and the initial head, which never changes

First the client makes `head_epochs` passes that train the head alone, then the round's local training of the
body alone. Each of the two has a new optimizer, with the same rate and batch size. If the local
training is given in steps, a pass of the head has as many steps.

Deviations: the paper makes ten passes with the head, and one or five with the body; by default `head_epochs`
is 1. Bodies are averaged by numbers of examples, over the cohort. The head's passes go over the batches
of the body's first pass, in the same order. The part that does not train keeps its running statistics. There
is no global model, and records have no `global_accuracy`.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsim.algorithms.personal_parts import PersonalParts, find_missing_body
from fedsim.base.parameters import Count
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort
from fedsim.core.batches import RepeatedBatches
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedRep(PersonalParts):
    """A shared body with personal heads: the head is fitted first, then the body trains.

    Attributes:
        head_epochs: passes over the client's examples for the head.
    """

    head_epochs: Count = 1

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "two local loops"

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model without a body."""
        return find_missing_body("fedrep", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The body."""
        return ctx.net.body

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The body, after the head has been fitted."""
        return ctx.net.body

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The head's passes, then the body's; `train_loss` is the body's."""
        head_ctx, head_task = self.make_head_context(ctx), self.make_head_task(ctx, task)
        fitted = self.train_locally(head_ctx, head_task, self.initial_params(ctx, task), ctx.net.head)
        moving = self.trainable_keys(ctx, task.broadcast)
        return self.collect_update(ctx, task, self.train_locally(ctx, task, fitted.params, moving))

    def make_head_context(self, ctx: Context) -> Context:
        """The context of the head's passes."""
        return ctx

    def make_head_task(self, ctx: Context, task: ClientTask) -> ClientTask:
        """The client task with the batches of the head's passes."""
        once = ctx.local.steps_per_pass(len(task.batches))
        return task._replace(
            batches=RepeatedBatches(RepeatedBatches(task.batches, once), self.head_epochs * once)
        )

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The head's steps, and the body's."""
        fitting = Effort(self.head_epochs * ctx.local.steps_per_pass(steps), ctx.net.head)
        return fitting, Effort(steps, ctx.net.body)
