"""A learning rate that falls when the clients' training loss stops falling, around any algorithm.

Idea: the server watches the mean `train_loss` of each cohort. After more than `patience` rounds without a new
best value it multiplies the learning rate of all later rounds by `factor`, as torch's ReduceLROnPlateau does.

Wire:
    down    the base algorithm's
            rate      the factor of the learning rate, one number
    up      the base algorithm's
    keeps   the base algorithm's
    server  base      the base algorithm's state
            factor    of the learning rate
            best      the best mean training loss so far
            bad       rounds since then

The factor is known only at the end of a round, on the server. It is therefore a part of the server state and
of the broadcast, and not of `LocalTraining`. Rates of the base algorithm's own, and the tuning of personal
models, do not follow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates
from fedsim.core.schedules import PlateauSchedule
from fedsim.core.wrapper import StatefulWrapper, WrapperState

RATE = "rate"
"""The payload that has the factor of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class PlateauState(WrapperState):
    """The server state of a learning rate that falls on plateaus.

    Attributes:
        factor: of the learning rate in the next round.
        best: the best mean training loss so far; None before the first.
        bad_rounds: rounds since then, or since the last fall of the rate.
    """

    factor: float = 1.0
    best: float | None = None
    bad_rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class PlateauDecay(StatefulWrapper):
    """Any algorithm, with a learning rate that falls on plateaus of the training loss.

    Attributes:
        base: the algorithm.
        schedule: when and how far the rate falls.
    """

    own_payloads: ClassVar[tuple[str, ...]] = (RATE,)

    schedule: PlateauSchedule

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, with a factor of 1."""
        return PlateauState(base=self.base.init_server_state(ctx))

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's payloads, and the factor."""
        factor = torch.tensor(state.factor, dtype=torch.float64)
        return {**super().broadcast(ctx, state), RATE: {"factor": factor}}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, and the factor of the next round."""
        after = super().aggregate(ctx, state, reduced)
        loss = reduced.metrics.get("train_loss")
        # A cohort without examples has measured nothing, and a diverged client nothing that can be compared.
        if loss is None or not math.isfinite(loss) or ctx.round < self.schedule.warmup:
            return after
        # Losses can be negative, as those of FedCL: a new best is always below the old one.
        if state.best is None or loss < state.best - self.schedule.threshold * abs(state.best):
            return replace(after, best=float(loss), bad_rounds=0)
        if state.bad_rounds < self.schedule.patience:
            return replace(after, bad_rounds=state.bad_rounds + 1)
        factor = max(self.schedule.final, state.factor * self.schedule.factor)
        return replace(after, factor=factor, bad_rounds=0)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the factor of the next round."""
        return {**super().describe_round(ctx, state), "lr_factor": state.factor}

    # client

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training, at the learning rate times the factor."""
        factor = float(task.broadcast[RATE]["factor"])
        local = replace(ctx.local, lr=ctx.local.lr * factor)
        # The rate of a client without a limit too: q-FedAvg computes with it.
        usual = ctx.unlimited_local and replace(ctx.unlimited_local, lr=ctx.unlimited_local.lr * factor)
        limited = replace(ctx, local=local, unlimited_local=usual)
        update: ClientUpdate = super().train_client(limited, task)
        return update
