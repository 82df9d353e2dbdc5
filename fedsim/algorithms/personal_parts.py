"""What methods have in common whose clients keep a part of the model for good."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core import Context
from ..tree import Tree
from .fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class PersonalParts(FedAvg):
    """FedAvg over a part of the model; the rest is each client's own, so there is no model for everybody."""

    stateful: ClassVar[bool] = True
    deploys: ClassVar[bool] = False

    @abstractmethod
    def shared(self, ctx: Context, state: Any) -> Collection[str]:
        """The part that travels."""

    def kept(self, ctx: Context) -> Collection[str]:
        """The rest."""
        return frozenset(ctx.net.keys).difference(self.shared(ctx, None))

    def deployed(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """Nothing: what clients keep is nobody else's."""
        return {}
