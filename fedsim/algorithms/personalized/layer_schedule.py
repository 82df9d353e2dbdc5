"""Personalized Federated Learning via Sequential Layer Expansion in Representation Learning.

Jang, Choi, 2024, arXiv:2404.17799.

Idea: all blocks of the body are closed (frozen) at first; they are opened one after another during the run,
from the input (vanilla) or from the head (anti), and only open blocks train and travel. Each client
fine-tunes the whole model for itself at the end.

Wire:
    down    params    the open blocks
    up      params    the open blocks, trained, MEAN
    keeps   nothing
    server  params    all blocks, and the head, which never changes
            times     the rounds of the openings, and the best loss since the last (`times: plateau` only)

The base consists of the K blocks before the head that have parameters. Block k (anti: K - k + 1) is open in
round t, counted from 0, as soon as t >= t_k. A closed block and the head have their initial values, which all
clients make from the run's seed: opening a block needs no broadcast of its own. Closed blocks get no
gradient. Under `vanilla` back-propagation still crosses the closed blocks above the open ones; under `anti`
it stops at the lowest open block. With `times: plateau` the next block opens after `patience` rounds in a row
in which the cohort's training loss was not more than `improvement` below its best since the last opening. A
round with a loss that is not finite is skipped.

Deviations: Eq. 4 sums over all clients; here the mean is over the cohort. Line 16 of Algorithm 1 sends every
base block; as in the paper's text, only open blocks are sent. The number of fine-tuning epochs is not in the
paper; here it is 10, as for FedBABU. Fine-tuning starts at the server's final model, which is sent first and
charged with the personal evaluation. Closed blocks keep and use their running statistics. The plateau is
fedsim's addition. The global model is the base with the initial head.

Reference result: see docs/results/layer-schedules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Annotated, Any, ClassVar, Literal

from fedsim.algorithms.personal_parts import FineTuned, find_missing_body
from fedsim.base.parameters import Count, Range
from fedsim.base.tree import Tree
from fedsim.core import Context, ReducedUpdates, ServerState
from fedsim.errors import FieldError
from fedsim.models.net import Net
from fedsim.techniques.late_starts import warn_of_closed_blocks
from fedsim.techniques.layer_openings import (
    WholeNumber,
    find_times_faults,
    list_opening_rounds,
    select_open_blocks,
)


@dataclass(frozen=True, kw_only=True)
class PlateauState(ServerState):
    """The server state with `times: plateau`.

    Attributes:
        times: the rounds of the openings so far.
        best: the lowest training loss since the last opening.
        waited: rounds since the last opening or the lowest loss.
    """

    times: tuple[int, ...] = (0,)
    best: float = inf
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerSchedule(FineTuned):
    """FedAvg of a body whose blocks open one after another, with a fixed random head.

    Attributes:
        order: the block that opens first: `vanilla` the one next to the input, `anti` the one next to the
            head.
        times: t_1 ... t_K, the round of each opening from 0 on, one for every base block, such as
            [0, 100, 200]; `even` spreads them over the run; `plateau` opens a block when the loss no longer
            falls; null opens one every `every` rounds.
        every: rounds between openings if `times` is null; (0, 100, 200) for three blocks.
        patience: rounds without improvement before a block opens, for `plateau`.
        improvement: decrease of the training loss that counts as an improvement, for `plateau`.
    """

    order: Literal["vanilla", "anti"] = "vanilla"
    times: tuple[WholeNumber, ...] | Literal["even", "plateau"] | None = None
    every: WholeNumber = 100
    patience: Count = 10
    improvement: Annotated[float, Range(0)] = 0.01

    purposes: ClassVar[tuple[str, ...]] = ("personalisation", "communication")
    asynchronous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.times, list):
            object.__setattr__(self, "times", tuple(self.times))

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """Errors for a model without base blocks, and for `times` that do not match the base blocks."""
        return find_missing_body("layer_schedule", net) or find_times_faults(self.times, net)

    def depends_on_num_rounds(self) -> bool:
        """Whether the openings are spread over the run."""
        return self.times == "even"

    # open blocks

    def opening_rounds(self, ctx: Context, state: Any) -> tuple[int, ...]:
        """The rounds in which blocks open, as far as they are known."""
        if self.times == "plateau":
            known: tuple[int, ...] = state.times
            return known[: len(ctx.net.base)]
        return list_opening_rounds(len(ctx.net.base), ctx.rounds, self.times, self.every)

    def open_blocks(self, ctx: Context, state: Any) -> tuple[str, ...]:
        """The blocks that train and travel in this round, in order from the input."""
        return select_open_blocks(ctx, self.opening_rounds(ctx, state), self.order)

    # server

    def init_server_state(self, ctx: Context) -> ServerState:
        """The parent's state; with `times: plateau`, one open block. A warning if a block never opens."""
        if self.times != "plateau":
            warn_of_closed_blocks(ctx, "algorithm", self.times, self.every, self.order)
        state = super().init_server_state(ctx)
        return PlateauState(params=state.params) if self.times == "plateau" else state

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The open blocks."""
        return {key for block in self.open_blocks(ctx, state) for key in ctx.net.blocks[block]}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state, and the plateau after the cohort's loss."""
        state = super().aggregate(ctx, state, reduced)
        return (
            self.update_plateau(ctx, state, reduced.metrics.get("train_loss", nan))
            if self.times == "plateau"
            else state
        )

    def update_plateau(self, ctx: Context, state: PlateauState, loss: float) -> PlateauState:
        """The state after a round with this training loss, perhaps with one more open block."""
        if not isfinite(loss):
            return state
        if loss < state.best - self.improvement:
            return replace(state, best=loss, waited=0)
        if state.waited + 1 < self.patience or len(state.times) >= max(len(net.base) for net in ctx.nets):
            return replace(state, waited=state.waited + 1)
        return replace(state, times=(*state.times, ctx.round + 1), best=inf, waited=0)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The open blocks, by architecture if there are several; with plateaus, the rounds waited."""
        blocks = {key: list(self.open_blocks(each, state)) for key, each in ctx.architectures.items()}
        said: dict[str, Any] = {"open_blocks": blocks["0"] if len(blocks) == 1 else blocks}
        if self.times == "plateau":
            best = None if state.best == inf else round(state.best, 6)
            said |= {"times": list(state.times), "best_loss": best, "waited": state.waited}
        return said

    # client

    def trainable_keys(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """The broadcast keys: the open blocks."""
        return frozenset(broadcast["params"])
