"""Personalized Federated Learning via Sequential Layer Expansion in Representation Learning.

Jang, Choi, 2024, arXiv:2404.17799.

Idea: the body is cut into its blocks, all frozen at first; they are opened one after another as the run goes
on, from the input (vanilla) or from the head (anti), and only open blocks train and travel. Each client
fine-tunes the whole model for itself in the end.

Wire:
    down    params    the open blocks
    up      params    the open blocks, trained, MEAN
    keeps   nothing
    server  params    all blocks, and the head, which never moves
            times     the rounds of the openings, and the best loss since the last (`times: plateau` only)

The base are the K blocks before the head that have parameters. Block k (anti: K - k + 1) is open in round t,
counted from 0, as soon as t >= t_k. A closed block and the head have their first values, which everybody
makes from the run's seed: opening one needs no broadcast of its own. No gradient is computed for what is
closed. Under `vanilla` back-propagation still crosses the closed blocks above the open ones, under `anti` it
stops at the lowest open one. With `times: plateau` the next block opens after `patience` rounds in a row in
which the cohort's training loss was not below its best, since the last opening, by more than `improvement`;
a loss that is no finite number says nothing, and such a round is passed over.

Deviations: Eq. 4 sums over all clients; here the mean is over those that came. Line 16 of Algorithm 1 sends
every base block; as in the text, only open ones are sent. The number of fine-tuning epochs is not in the
paper; 10 is usual for FedBABU. Fine-tuning begins for everybody at the server's final model, which is sent
first and charged with the personal evaluation. Blocks that are closed keep their running statistics too, and
use them. The plateau is ours. The model for everybody is the base under the first head.

Reference result: see docs/results.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Annotated, Any, Literal

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import without_body
from fedsim.base import tree
from fedsim.base.parameters import Count, Range
from fedsim.base.tree import Tree
from fedsim.core import Context, Local, Reduced, ServerState, Visit
from fedsim.errors import FieldError
from fedsim.models.net import Net
from fedsim.training.local_loop import fine_tuned

Whole = Annotated[int, Range(0)]


@dataclass(frozen=True, kw_only=True)
class PlateauState(ServerState):
    """The server's state where plateaus decide.

    Attributes:
        times: the rounds of the openings so far.
        best: the lowest training loss since the last one.
        waited: rounds since then without a lower one.
    """

    times: tuple[int, ...] = (0,)
    best: float = inf
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerSchedule(FedAvg):
    """FedAvg of a body whose blocks open one after another, under a head that stays as it was drawn.

    Attributes:
        order: which block opens first: `vanilla` the one next to the input, `anti` the one next to the head.
        times: t_1 ... t_K, the rounds before each opening, one for every base block; `even` spreads them
            over the run; `plateau` opens a block when the loss no longer falls; null opens one every
            `every` rounds.
        every: rounds between openings where `times` is null; (0, 100, 200) for three blocks.
        patience: rounds without improvement before a block opens, for `plateau`.
        improvement: how much lower the loss has to be to count as better, in nats, for `plateau`.
        tuning_epochs: of fine-tuning, of the whole model; 0 leaves it out.
    """

    order: Literal["vanilla", "anti"] = "vanilla"
    times: tuple[Whole, ...] | Literal["even", "plateau"] | None = None
    every: Whole = 100
    patience: Count = 10
    improvement: Annotated[float, Range(0)] = 0.01
    tuning_epochs: Whole = 10

    def __post_init__(self) -> None:
        if isinstance(self.times, list):
            object.__setattr__(self, "times", tuple(self.times))

    def misfits(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """A model without base blocks, and times that are not one for each of them, in order, from 0."""
        if not net.base or not isinstance(self.times, tuple):
            return without_body("layer_schedule", net)
        named = f"{net.name} has {len(net.base)} base blocks: {', '.join(net.base)}"
        hint = f"give {len(net.base)} rounds, from 0 on and in order, or null for an opening every 100"
        if len(self.times) != len(net.base):
            return [FieldError("times", list(self.times), named, hint)]
        if self.times[0] != 0 or list(self.times) != sorted(self.times):
            return [FieldError("times", list(self.times), "has to begin with 0 and not to descend", hint)]
        return []

    def by_rounds(self) -> bool:
        """Where the openings are spread over the run."""
        return self.times == "even"

    # what is open

    def unfreezing(self, ctx: Context, state: Any) -> tuple[int, ...]:
        """The rounds in which blocks open, as far as they are known."""
        blocks = len(ctx.net.base)
        if self.times == "plateau":
            known: tuple[int, ...] = state.times
            return known[:blocks]
        if self.times == "even":
            return tuple(ctx.rounds * k // blocks for k in range(blocks))
        return self.times if isinstance(self.times, tuple) else tuple(self.every * k for k in range(blocks))

    def open_blocks(self, ctx: Context, state: Any) -> tuple[str, ...]:
        """The blocks that train and travel in this round, from the input on."""
        count = sum(time <= ctx.round for time in self.unfreezing(ctx, state))
        return ctx.net.base[:count] if self.order == "vanilla" else ctx.net.base[len(ctx.net.base) - count :]

    # server

    def init(self, ctx: Context) -> ServerState:
        """The parent's; where plateaus decide, the first block is open."""
        state = super().init(ctx)
        return PlateauState(params=state.params) if self.times == "plateau" else state

    def shared(self, ctx: Context, state: Any) -> Collection[str]:
        """The open blocks."""
        return {key for block in self.open_blocks(ctx, state) for key in ctx.net.blocks[block]}

    def survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """The open blocks: everybody has the others and the head."""
        return tree.select(model, self.shared(ctx, state))

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The parent's, and what the cohort's loss says."""
        state = super().aggregate(ctx, state, reduced)
        return self.watched(ctx, state, reduced.metrics["train_loss"]) if self.times == "plateau" else state

    def watched(self, ctx: Context, state: PlateauState, loss: float) -> PlateauState:
        """The state after a round with this training loss: another block may be open from the next one on."""
        if not isfinite(loss):
            return state
        if loss < state.best - self.improvement:
            return replace(state, best=loss, waited=0)
        if state.waited + 1 < self.patience or len(state.times) >= max(len(net.base) for net in ctx.nets):
            return replace(state, waited=state.waited + 1)
        return replace(state, times=(*state.times, ctx.round + 1), best=inf, waited=0)

    def describe(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The blocks that were open; with several architectures, those of each. With plateaus, the wait."""
        models = [ctx.for_model(model) for model in range(len(ctx.nets))]
        blocks = {str(mine.model): list(self.open_blocks(mine, state)) for mine in models}
        said: dict[str, Any] = {"open_blocks": blocks["0"] if len(models) == 1 else blocks}
        if self.times == "plateau":
            best = None if state.best == inf else round(state.best, 6)
            said |= {"times": list(state.times), "best_loss": best, "waited": state.waited}
        return said

    # client

    def trainable(self, ctx: Context, broadcast: Tree) -> Collection[str]:
        """What came down: the open blocks."""
        return frozenset(broadcast["params"])

    def tuning(self, ctx: Context) -> Local | None:
        """So many epochs of the usual training."""
        return replace(ctx.local, epochs=self.tuning_epochs, steps=None) if self.tuning_epochs else None

    def personalise(self, ctx: Context, visit: Visit) -> Tree:
        """The final model, trained as a whole on the client's examples."""
        return fine_tuned(ctx, visit, self.start(ctx, visit))
