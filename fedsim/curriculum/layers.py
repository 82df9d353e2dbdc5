"""Personalized Federated Learning via Sequential Layer Expansion in Representation Learning, section 5.4.

Jang, Choi, 2024, arXiv:2404.17799.

Idea: the blocks before the head open one after another, around any algorithm: a closed block keeps its first
values, neither trains nor travels, and all else is the base algorithm's.

Wire:
    down    the base algorithm's, without closed blocks
    up      the base algorithm's, without closed blocks
    keeps   the base algorithm's
    server  the base algorithm's

Clients and server know closed blocks from the run's seed. They are a part of the simulated messages all the
same, and cost no bytes. Around `fedbabu` it is `layer_schedule`. Fine-tuning trains all blocks.

Deviations: the paper does not say how the scheduled baselines treat the head: here it trains and travels as
the base algorithm has it. A survey of clients is charged the whole model.

Reference result: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import PayloadAccounting, count_bytes
from fedsim.core.wrapper import Wrapper
from fedsim.errors import FieldError
from fedsim.models.net import Net
from fedsim.techniques.late_starts import warn_of_closed_blocks
from fedsim.techniques.layer_openings import (
    OpeningOrder,
    OpeningTimes,
    WholeNumber,
    find_times_faults,
    list_opening_rounds,
    select_open_blocks,
)


@dataclass(frozen=True, kw_only=True)
class LayerCurriculum(Wrapper):
    """Any algorithm, whose blocks before the head open one after another.

    Attributes:
        base: the algorithm.
        order: the block that opens first: `vanilla` the one next to the input, `anti` the one next to the
            head.
        times: the round of each opening, one for every block; `even` spreads them over the run; null opens
            one every `every` rounds.
        every: rounds between openings if `times` is null.
    """

    own: ClassVar[frozenset[type]] = frozenset({PayloadAccounting})
    asynchronous: ClassVar[bool] = False

    order: OpeningOrder = "vanilla"
    times: OpeningTimes = None
    every: WholeNumber = 100

    def open_blocks(self, ctx: Context) -> tuple[str, ...]:
        """The blocks before the head that train and travel in this round, in order from the input."""
        openings = list_opening_rounds(len(ctx.net.base), ctx.rounds, self.times, self.every)
        return select_open_blocks(ctx, openings, self.order)

    def check_openings(self, net: Net) -> Sequence[FieldError]:
        """Errors for a model without blocks before its head, and for `times` that do not match them."""
        if not net.base:
            hint = "choose a model that has layers before its head"
            return [FieldError("order", self.order, f"{net.name} has no blocks before its head", hint)]
        return find_times_faults(self.times, net)

    def depends_on_num_rounds(self) -> bool:
        """Whether the openings are spread over the run, or the base depends on the number of rounds."""
        return self.times == "even" or super().depends_on_num_rounds()

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state; a warning if a block never opens."""
        warn_of_closed_blocks(ctx, "curriculum.layers", self.times, self.every, self.order)
        return super().init_server_state(ctx)

    def list_closed_keys(self, ctx: Context) -> frozenset[str]:
        """The keys of the blocks that are closed in this round."""
        opened = self.open_blocks(ctx)
        return frozenset(key for name in ctx.net.base if name not in opened for key in ctx.net.blocks[name])

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The base algorithm's count for a payload without closed blocks."""
        closed = self.list_closed_keys(ctx)
        return count_bytes(self.base, ctx, name, tree.drop(payload, closed))

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the open blocks, by architecture if there are several."""
        blocks = {key: list(self.open_blocks(each)) for key, each in ctx.architectures.items()}
        said = {"open_blocks": blocks["0"] if len(blocks) == 1 else blocks}
        return {**super().describe_round(ctx, state), **said}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training, in which closed blocks stay as they are."""
        update: ClientUpdate = super().train_client(replace(ctx, frozen=self.list_closed_keys(ctx)), task)
        return update

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort, without the closed blocks."""
        closed = self.list_closed_keys(ctx)
        efforts: Sequence[Effort] = super().count_effort(ctx, state, steps)
        return [each._replace(trainable=frozenset(each.trainable) - closed) for each in efforts]
