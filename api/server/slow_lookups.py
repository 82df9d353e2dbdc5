"""Slow look-ups: in threads of their own, so that nobody who asks for something else waits behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from api.server.errors import ServiceBusy

MOST_WAITING = 100
"""Look-ups of one kind that may wait for their turn; each holds its request's body."""

PROBE_SECONDS = 5.0
"""Seconds in which a store that answers at all has answered a probe."""

T = TypeVar("T")


class Lookups:
    """Runs work that may read a whole data set, as a check does: never more than a few at once.

    Args:
        threads: how many run at once.
        waiting: how many may wait beside them.
    """

    def __init__(self, threads: int, waiting: int = MOST_WAITING) -> None:
        self.threads, self.waiting = threads, waiting
        self.pending = 0
        # Made on first use: it belongs to an event loop.
        self._limiter: CapacityLimiter | None = None

    async def run_work(self, work: Callable[..., T], *given: object) -> T:
        """Do the work in one of the threads, and give what it gives.

        Raises:
            ServiceBusy: too many wait already.
        """
        if self.pending >= self.threads + self.waiting:
            raise ServiceBusy(f"{self.pending} look-ups of data sets are being made or wait for it")
        self._limiter = self._limiter or CapacityLimiter(self.threads)
        self.pending += 1
        try:
            return await to_thread.run_sync(work, *given, limiter=self._limiter)
        finally:
            self.pending -= 1


class SharedProbe:
    """Whether somebody answers, asked once for all who want to know: one who is silent holds one thread.

    Args:
        ask: asks, and returns or raises when there is an answer.
        seconds: for how long the answer is waited for.
    """

    def __init__(self, ask: Callable[[], object], seconds: float = PROBE_SECONDS) -> None:
        self._ask, self.seconds = ask, seconds
        self._answer: asyncio.Task[object] | None = None

    async def wait_for_answer(self) -> None:
        """Wait for an answer.

        Raises:
            TimeoutError: there was none in time.
            Exception: as `ask` does.
        """
        if self._answer is None or self._answer.done():
            self._answer = asyncio.create_task(asyncio.to_thread(self._ask))
            # An error that comes when nobody waits any more is nobody's.
            self._answer.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        await asyncio.wait_for(asyncio.shield(self._answer), self.seconds)
