"""FedBABU: Towards Enhanced Representation for Federated Image Classification.

Oh, Kim, Yun, ICLR 2022, arXiv:2106.06042.

Idea: the head keeps its random initial weights, the same for all, and only the body learns; each client
fine-tunes the whole model for itself at the end.

Wire:
    down    params    the body
    up      params    the trained body, MEAN
    keeps   nothing
    server  params    the body, and the head, which never changes

All clients make the same initial head from the run's seed, and it never travels. For its own use a client
takes the final model and trains all of it for `tuning_epochs` epochs at the round's rate.

Deviations: `tuning_epochs` is 10 by default; a copy of the authors' code has 5. At the rate of the last
round, a schedule that falls to nearly 0 leaves nearly nothing of the fine-tuning. The head gets no gradient;
the paper computes one and sets its rate to 0, with the same trajectory. Fine-tuning starts at the server's
final model, which is sent first and charged with the personal evaluation. The global model is the body with
the initial head. `head: shared` is fedsim's addition: the head trains and travels with the body, so the
global model is FedAvg's, and its clients fine-tune it as here.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import find_missing_body, fine_tune
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, Context, LocalTraining
from fedsim.core.capabilities import PersonalModels, SurveyPayload
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedAvg, PersonalModels, SurveyPayload):
    """FedAvg of the body with a fixed random head, and fine-tuning at the end.

    Attributes:
        tuning_epochs: epochs of fine-tuning the whole model; 0 for none.
        head: `fixed` at its initial values, or `shared`: it trains and travels as the body does, which is
            FedAvg with fine-tuning at the end.
    """

    tuning_epochs: Annotated[int, Range(0)] = 10
    head: Literal["fixed", "shared"] = "fixed"

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model without a body."""
        return find_missing_body("fedbabu", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The body; with a shared head, the whole model."""
        return ctx.net.body if self.head == "fixed" else ctx.net.keys

    def select_survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """The shared keys: all clients have a fixed head."""
        return tree.select(model, self.shared_keys(ctx, state))

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The body; with a shared head, the whole model."""
        return ctx.net.body if self.head == "fixed" else ctx.net.parameters

    def plan_tuning(self, ctx: Context) -> LocalTraining | None:
        """The local training with `tuning_epochs` epochs."""
        return replace(ctx.local, epochs=self.tuning_epochs, steps=None) if self.tuning_epochs else None

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The final model after training all of it on the client's examples."""
        return fine_tune(ctx, task, self.initial_params(ctx, task))
