"""UpdateDissimilarity: how much the clients' updates of a round disagree, in the record of any algorithm.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020: assumption A1 bounds the gradient dissimilarity
B^2 = mean |g_k|^2 / |mean g_k|^2. Here g_k is the change of client k's model in the round, and
the means have the weights of the algorithm's MEAN. The value is 1 if all clients agree, and has no bound.

Wire:
    down, keeps  the base algorithm's
    up      the base algorithm's
            change    free: the change of the model and its squared norm, MEAN
    server  base      the base algorithm's state
            dissimilarity  of the last round

No round depends on the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.core.wrapper import StatefulWrapper, WrapperState

CHANGE = "change"


@dataclass(frozen=True, kw_only=True)
class DissimilarityState(WrapperState):
    """The server state.

    Attributes:
        dissimilarity: of the last round, by architecture; an architecture without a change is missing.
    """

    dissimilarity: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class UpdateDissimilarity(StatefulWrapper):
    """Any algorithm, with the dissimilarity of its clients' updates in the record.

    Attributes:
        base: the algorithm.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.add_upload(CHANGE, Reduction.MEAN, free=True)

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, without a value."""
        return DissimilarityState(base=self.base.init_server_state(ctx), dissimilarity={})

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training, and the change of the model.

        Raises:
            FedsimError: if the base algorithm does not return its clients' models.
        """
        update: ClientUpdate = super().train_client(ctx, task)
        model, keys = self.require_model(update, "leave evaluation.dissimilarity out"), ctx.net.parameters
        change = tree.difference(model, self.initial_params(ctx, task), keys)
        sent: Tree = {"model": change, "squared": tree.dot(change, change)}
        return update._replace(upload={**update.upload, CHANGE: sent})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, and the dissimilarity of the cohort."""
        found = dict[str, float]()
        means = reduced[CHANGE] if len(ctx.nets) > 1 else {"0": reduced[CHANGE]}
        for number, mean in means.items():
            norm = float(tree.dot(mean["model"], mean["model"])) if mean else 0.0
            if norm > 0:
                found[number] = float(mean["squared"]) / norm
        return replace(super().aggregate(ctx, state, reduced), dissimilarity=found)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the dissimilarity, by architecture if there are several."""
        found = {number: round(value, 6) for number, value in state.dissimilarity.items()}
        value = found if len(ctx.nets) > 1 else found.get("0")
        return {**super().describe_round(ctx, state), "update_dissimilarity": value}
