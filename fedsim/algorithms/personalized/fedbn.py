"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, arXiv:2102.07623.

Idea: clients whose inputs look different share everything but BatchNorm, which each client fits to its own
inputs.

Wire:
    down    params    all keys but those of BatchNorm
    up      params    the same keys, trained, MEAN
    keeps   own       weights, biases and running statistics of BatchNorm; before the first round the initial
                      ones, the same for all
    server  params    the shared part, and the initial BatchNorm, which never changes

Layers are found by their type, not by their names. GroupNorm and LayerNorm are shared like other layers.

Deviations: models are averaged by numbers of examples, over the cohort. There is no global model, and records
have no `global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsim.algorithms.personal_parts import PersonalParts
from fedsim.core import Context, ServerState
from fedsim.models.layers import list_batch_norm_keys

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FedBN(PersonalParts):
    """FedAvg of all layers but BatchNorm, which stays with each client."""

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)

    def init_server_state(self, ctx: Context) -> ServerState:
        """The parent's state; a warning if no model has a BatchNorm."""
        if not any(list_batch_norm_keys(net.module) for net in ctx.nets):
            _LOG.warning("no model has BatchNorm, so fedbn trains as fedavg does")
        return super().init_server_state(ctx)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """All keys but those of BatchNorm."""
        return frozenset(ctx.net.keys).difference(list_batch_norm_keys(ctx.net.module))
