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
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedsim.algorithms.personal_parts import FineTuned, find_missing_body
from fedsim.base.tree import Tree
from fedsim.core import Context
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedBABU(FineTuned):
    """FedAvg of the body with a fixed random head, and fine-tuning at the end.

    Attributes:
        head: `fixed` at its initial values, or `shared`: it trains and travels as the body does, which is
            FedAvg with fine-tuning at the end.
    """

    head: Literal["fixed", "shared"] = "fixed"

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model without a body."""
        return find_missing_body("fedbabu", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The body; with a shared head, the whole model."""
        return ctx.net.body if self.head == "fixed" else ctx.net.keys

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The body; with a shared head, the whole model."""
        return ctx.net.body if self.head == "fixed" else ctx.net.parameters
