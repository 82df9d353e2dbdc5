"""Think Locally, Act Globally: Federated Learning with Local and Global Representations.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, 2019, arXiv:2001.01523.

Idea: every client learns features of its own, and only the head, which is small, is everybody's.

Wire:
    down    params    the head
    up      params    the trained head, MEAN
    keeps   own       the body; before the first visit the first one, which is the same for all
    server  params    the head, and the first body, which never moves

Deviations: heads are averaged by numbers of examples over the clients that came; the authors' code takes a
plain mean. Training starts from scratch, as in the layer-scheduling paper; theirs starts from a model that
FedAvg has trained. Everything but the head is local, and the adversarial variant is left out. There is no
model for everybody, so records have no `global_accuracy`.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.algorithms.personal_parts import PersonalParts, find_missing_body
from fedsim.core import Context
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PersonalParts):
    """A shared head on bodies of the clients' own, trained together."""

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """A model without a body."""
        return find_missing_body("lg_fedavg", net)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The head."""
        return ctx.net.head
