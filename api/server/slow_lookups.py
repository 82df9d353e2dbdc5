"""Slow look-ups: in threads of their own, so that nobody who asks for something else waits behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from api.server.errors import Crowded

MOST_WAITING = 100
"""Look-ups of one kind that may wait for their turn; each holds its request's body."""

SOON = 5.0
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
        self.asked = 0
        # Made on first use: it belongs to an event loop.
        self._turns: CapacityLimiter | None = None

    async def run(self, work: Callable[..., T], *given: object) -> T:
        """Do the work in one of the threads, and give what it gives.

        Raises:
            Crowded: too many wait already.
        """
        if self.asked >= self.threads + self.waiting:
            raise Crowded(f"{self.asked} look-ups of data sets are being made or wait for it")
        self._turns = self._turns or CapacityLimiter(self.threads)
        self.asked += 1
        try:
            return await to_thread.run_sync(work, *given, limiter=self._turns)
        finally:
            self.asked -= 1


class Pulse:
    """Whether somebody answers, asked once for all who want to know: one who is silent holds one thread.

    Args:
        ask: asks, and returns or raises when there is an answer.
        seconds: for how long the answer is waited for.
    """

    def __init__(self, ask: Callable[[], object], seconds: float = SOON) -> None:
        self._ask, self.seconds = ask, seconds
        self._asked: asyncio.Task[object] | None = None

    async def feel(self) -> None:
        """Wait for an answer.

        Raises:
            TimeoutError: there was none in time.
            Exception: as `ask` does.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(asyncio.to_thread(self._ask))
            # An error that comes when nobody waits any more is nobody's.
            self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        await asyncio.wait_for(asyncio.shield(self._asked), self.seconds)
