"""ModelVersion: a version of the server's model, which clients in flight have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedsim.clock.profiles import ClientWork
from fedsim.clock.simulated_clock import MessageSizes
from fedsim.core import Context, Traffic
from fedsim.engine.round_start import TrainingGroup
from fedsim.engine.round_timing import MessageMeter
from fedsim.training.effort import CostMeter


class ModelVersion:
    """A version of the server's model, and the sizes of the messages of clients that download it.

    Args:
        ctx: the round in which the server has it.
        state: the server state at the start of that round.
        messages: measures the sizes.
    """

    def __init__(self, ctx: Context, state: Any, messages: MessageMeter) -> None:
        self.ctx, self.state, self._messages = ctx, state, messages

    def make_group(self, clients: Sequence[int]) -> TrainingGroup:
        """Return these clients as clients that begin with this version."""
        return TrainingGroup(self.ctx, self.state, tuple(clients))

    @cached_property
    def _sizes(self) -> MessageSizes:
        # The clients of an architecture have messages of the same size: client k stands for architecture k.
        examples = range(min(len(self.ctx.nets), self.ctx.num_clients))
        return self._messages.measure(self.ctx, self.state, examples)

    def measure_works(self, meter: CostMeter, clients: Sequence[int]) -> list[ClientWork]:
        """Return the work of each of these clients, before it trains."""
        down, up = self._sizes.down, self._sizes.up
        flops = meter.client_flops(self.ctx, self.state, clients)
        return [
            ClientWork(sum(down[client % len(down)].values()), each, up[client % len(down)])
            for client, each in zip(clients, flops, strict=True)
        ]

    def count_download(self, client: int) -> Traffic:
        """Return the traffic of the download of one client."""
        sizes = self._sizes.down[client % len(self._sizes.down)]
        return Traffic(sum(sizes.values()), 0, sizes)
