"""Think Locally, Act Globally: Federated Learning with Local and Global Representations.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, 2020, arXiv:2001.01523.

Idea: every client learns its own features, and all clients share only the head, which is small.

Wire:
    down    params    the head
    up      params    the trained head, MEAN
    keeps   own       the body; before the first round the initial body, the same for all
    server  params    the head, and the initial body, which never changes

Deviations: heads are averaged by numbers of examples over the cohort; the authors' code takes a plain mean.
Training starts from scratch, as in the layer-scheduling paper; the authors start from a model trained by
FedAvg. Everything but the head is local, and the adversarial variant is left out. There is no global model,
and records have no `global_accuracy`.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsim.algorithms.personal_parts import PersonalParts, find_missing_body
from fedsim.core import Context
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PersonalParts):
    """A shared head on personal bodies, trained together."""

    purposes: ClassVar[tuple[str, ...]] = ("personalisation", "communication")

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model without a body."""
        return find_missing_body("lg_fedavg", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The head."""
        return ctx.net.head
