"""Triple distillation: a client learns from all clients' mean, its own best model, and earlier rounds' mean.

ACE-pFL (He et al., IEEE Transactions on Networking 2025), Section III-D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.core.public_set import ROWS
from fedsim.models.net import Params
from fedsim.techniques.soft_targets import compare_soft_predictions, soft_target_loss, soften_logits
from fedsim.training.losses import cross_entropy, mark_correct

Strategy: TypeAlias = Literal["single", "double", "triple"]
GlobalTerm: TypeAlias = Literal["live", "literal"]

TEACHERS = "teachers"
"""Key of the teachers' soft predictions in the instruction of a task on the public set."""


@dataclass(frozen=True, kw_only=True)
class TripleDistillation:
    """The personal loss of a client, and the client state that it needs.

    Attributes:
        alphas: weights of the cross-entropy and of the three divergences.
        strategy: `single` has the first divergence alone, `double` the first two.
        l_gd: `live` compares the client's prediction with the past, `literal` the server's, a constant.
        tau_squared: whether the divergences are multiplied by the squared temperature.
    """

    alphas: tuple[float, float, float, float]
    strategy: Strategy = "triple"
    l_gd: GlobalTerm = "live"
    tau_squared: bool = True

    def make_teachers(
        self, ctx: Context, client_state: Tree, said: Tensor, temperature: float
    ) -> dict[str, Tensor]:
        """The teachers of a client: `global`, and `best` and `past` once its client state has them.

        Args:
            ctx: the round, for this client.
            client_state: see `update_client_state`.
            said: s^r.
            temperature: T_r.

        Returns:
            Soft predictions `[public examples, classes]`.
        """
        public, found = ctx.require_public_set(), {"global": said}
        if self.strategy != "single" and "best" in client_state:
            logits = public.predict_examples(lambda x: ctx.net(client_state["best"], x))
            found["best"] = soften_logits(logits, temperature, public.several_labels)
        if self.strategy == "triple" and "past" in client_state:
            found["past"] = client_state["past"]
        return found

    def has_weight(self) -> bool:
        """Whether a term of the loss has a weight; without one, a client learns nothing on the public set."""
        used = {"single": 2, "double": 3, "triple": 4}[self.strategy]
        return any(self.alphas[:used])

    def loss(
        self,
        ctx: Context,
        params: Params,
        batch: Batch,
        teachers: Mapping[str, Tensor],
        temperature: float,
    ) -> Tensor:
        """Eq. 4 on a batch of the public set: a scalar."""
        logits, several = ctx.net(params, batch.x), ctx.require_public_set().several_labels
        terms = self.terms(logits, batch, teachers, temperature, several).values()
        return sum(terms, torch.zeros((), device=logits.device))

    def terms(
        self,
        logits: Tensor,
        batch: Batch,
        teachers: Mapping[str, Tensor],
        temperature: float,
        several_labels: bool = False,
    ) -> dict[str, Tensor]:
        """The weighted terms of Eq. 4: `ce` and `kd`, and with these teachers `sd` and `gd`."""
        factor = temperature**2 if self.tau_squared else 1.0

        def distance(teacher: Tensor) -> Tensor:
            return factor * soft_target_loss(teacher, logits, temperature, several_labels)

        parts = {name: teacher[batch.noise[ROWS]] for name, teacher in teachers.items()}
        label, first, second, third = self.alphas
        found = {
            "ce": label * cross_entropy(logits, batch),
            "kd": first * distance(parts["global"]),
        }
        if "best" in parts:
            found["sd"] = second * distance(parts["best"])
        if "past" in parts and self.l_gd == "live":
            found["gd"] = third * distance(parts["past"])
        elif "past" in parts:
            pair = parts["global"], parts["past"]
            constant = compare_soft_predictions(*pair, temperature, several_labels)
            found["gd"] = third * (factor * constant)
        return found

    def update_client_state(self, ctx: Context, task: ClientTask, model: Params, said: Tensor) -> Tree:
        """The client state for later rounds: the best model so far, and the mean of all rounds' predictions.

        Args:
            ctx: the round, for this client.
            task: the client task, with the client state so far.
            model: the client's model after this round.
            said: s^r.

        Returns:
            `best` and `score`, `past` and `heard` (its number of rounds), as far as the strategy needs them.
            Of two equally good models the later one is the best.
        """
        client_state, found = task.client_state, dict[str, Any]()
        if self.strategy != "single":
            score = held_out_accuracy(ctx, task, model)
            before, best = client_state.get("score", score), client_state.get("best", model)
            found["best"] = tree.map(lambda new, old: torch.where(score >= before, new, old), model, best)
            found["score"] = torch.maximum(score, before)
        if self.strategy == "triple":
            heard = client_state.get("heard", torch.zeros((), device=said.device)) + 1
            past = client_state.get("past", torch.zeros_like(said))
            found |= {"past": past + (said - past) / heard, "heard": heard}
        return found


@dataclass(frozen=True)
class TripleLoss:
    """The loss of a local loop on the public set, for `LocalLoop.loss`.

    Attributes:
        triple: the terms and their weights.
        temperature: temperature of the distillation.
    """

    triple: TripleDistillation
    temperature: float

    def __call__(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """Eq. 4 on a batch, with the client's teachers from its instruction."""
        teachers: Mapping[str, Tensor] = task.instruction[TEACHERS]
        return self.triple.loss(ctx, params, batch, teachers, self.temperature)


def held_out_accuracy(ctx: Context, task: ClientTask, model: Params) -> Tensor:
    """A model's accuracy on the examples that a client holds out: a scalar, 0 without such examples."""
    correct = torch.zeros((), device=task.device)
    examples = torch.zeros((), device=task.device)
    with torch.no_grad():
        for batch in task.held_out.batches() if task.held_out is not None else ():
            logits = ctx.net(model, batch.x)
            if batch.y.dim() == 2:
                known = ~torch.isnan(batch.y)
                correct = correct + (mark_correct(logits, batch.y) & known).sum()
                examples = examples + known.sum()
            else:
                correct = correct + mark_correct(logits, batch.y).sum()
                examples = examples + len(batch.y)
    return correct / examples.clamp(min=1)
