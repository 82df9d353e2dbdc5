"""What methods have in common that tell the head of a model from its body."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base.tree import Tree
from fedsim.core import Context
from fedsim.errors import FieldError
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class PersonalParts(FedAvg):
    """FedAvg over a part of the model; the rest is each client's own, so there is no model for everybody."""

    stateful: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False

    @abstractmethod
    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The part that travels."""

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The rest."""
        return frozenset(ctx.net.keys).difference(self.shared_keys(ctx, None))

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """Nothing: what clients keep is nobody else's."""
        return {}


def find_missing_body(method: str, net: Net) -> Sequence[FieldError]:
    """The fault of a model that is nothing but its head, for a method that treats head and body apart."""
    if net.base:
        return ()
    hint = "choose a model that has layers before its head"
    return (FieldError("name", method, f"{net.name} has no blocks before its head", hint),)
