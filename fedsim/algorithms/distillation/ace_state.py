"""The server state of ACE-pFL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedsim.base.digest import NOT_IN_DIGEST
from fedsim.core import ServerState


@dataclass(frozen=True, kw_only=True)
class AceState(ServerState):
    """The server state; the server has no model.

    Attributes:
        predictions: s^r, float32 `[public examples, classes]`, or with `teachers: cluster` one for each
            cluster, `[clusters, public examples, classes]`; None at first, or if all clients diverged.
        clusters: the cluster of each client, int64 `[N]`; None without clustering.
        weights: the weight of each client in the mean, float64 `[N]`; None without clustering.
        mean_emd: the mean distance between the clients of each cluster, from their reported distributions.
        emd_by_ground: the same by the name of each ground distance, for the record.
    """

    predictions: Tensor | None = None
    clusters: Tensor | None = None
    weights: Tensor | None = None
    mean_emd: tuple[float, ...] = ()
    emd_by_ground: Mapping[str, tuple[float, ...]] = field(default_factory=dict, metadata=NOT_IN_DIGEST)
