"""LastModelAveraging: the mean of all clients' last models, scored beside the models of any algorithm.

Ma, 2025, arXiv:2506.20431, section 5.1: the teacher of KDIA. Without its distillation this mean is the
control for the teacher: it tells how much of a gain comes from averaging alone.

Wire:
    down    the base algorithm's
    up      the base algorithm's
            last_models  free: the change of the client's part of the mean, SUM
    keeps   base    the base algorithm's
            model   the model that it trained last, in which round, and in how many rounds it took part
    server  base    the base algorithm's state
            sums    of each architecture

A client's model is the one that it has trained, before compression, noise or an attack. No client sees the
mean: all rounds are those of the base algorithm. The weights are those of `fedsim.techniques.last_models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.engine.evaluation.model_averaging import AVERAGE
from fedsim.errors import FedsimError
from fedsim.techniques.last_models import (
    MeanKind,
    advance_client,
    advance_sums,
    init_sums,
    make_teacher,
)

PAYLOAD = "last_models"


@dataclass(frozen=True, kw_only=True)
class LastModelAveragingState(WrapperState):
    """The server state.

    Attributes:
        sums: {architecture: the running sums, as in `fedsim.techniques.last_models`}.
    """

    sums: Tree


@dataclass(frozen=True, kw_only=True)
class LastModelAveraging(StatefulWrapper):
    """Any algorithm that deploys a model, with the mean of all clients' last models beside it.

    Attributes:
        base: the algorithm.
        weights: what weights a client's model: how recently and how often it took part and its number of
            examples (`geometric` or `arithmetic` mean), or one of these alone (`interval`, `count`,
            `volume`).

    Raises:
        ValueError: if the base deploys no model.

    Example:
        >>> from fedsim.algorithms import FedAvg
        >>> LastModelAveraging(base=FedAvg()).weights
        'geometric'
    """

    weights: MeanKind = "geometric"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base.deploys_models:
            raise ValueError(f"{type(self.base).__name__} deploys no model; score personal models instead")
        self.add_upload(PAYLOAD, Reduction.SUM, free=True)
        object.__setattr__(self, "stateful", True)

    def base_value(self, value: Any) -> Any:
        """The base algorithm's server state, and a task with its own client state."""
        if isinstance(value, ClientTask):
            return value._replace(client_state=value.client_state["base"])
        return super().base_value(value)

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, with empty sums.

        Raises:
            FedsimError: if the first model that the base algorithm deploys is no single model.
        """
        base, sums = self.base.init_server_state(ctx), dict[str, Tree]()
        for number, each in ctx.architectures.items():
            model = next(iter(self.base.deploy_models(each, base).values()))
            if set(model) != set(each.net.keys):
                message = f"{type(self.base).__name__} deploys something else than one model"
                raise FedsimError(message, "leave evaluation.average.clients out")
            sums[number] = init_sums(self.weights, model)
        return LastModelAveragingState(base=base, sums=sums)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state; the sums, decayed by a round, plus the cohort's changes."""
        changes = reduced[PAYLOAD] if len(ctx.nets) > 1 else {"0": reduced[PAYLOAD]}
        sums = {
            number: advance_sums(self.weights, held, changes.get(number) or tree.map(torch.zeros_like, held))
            for number, held in state.sums.items()
        }
        return replace(super().aggregate(ctx, state, reduced), sums=sums)

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's models, and `average`: the first of them before a client's model weighs."""
        models: Mapping[str, Tree] = super().deploy_models(ctx, state)
        first = next(iter(models.values()))
        return {**models, AVERAGE: make_teacher(state.sums[str(ctx.architecture)], first)}

    # client

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The base algorithm's client state, without a model."""
        return {"base": self.base.init_client_state(ctx, broadcast)}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training, and the change of the client's part of the mean.

        Raises:
            FedsimError: if the base algorithm does not return its clients' models.
        """
        update: ClientUpdate = super().train_client(ctx, task)
        model = self.require_model(update, "leave evaluation.average.clients out")
        kept = tree.drop(task.client_state, ["base"])
        change, own_state = advance_client(self.weights, kept, model, ctx.round, task.num_examples)
        return update._replace(
            upload={**update.upload, PAYLOAD: change}, client_state={"base": update.client_state, **own_state}
        )
