"""Runs slow look-ups in their own threads, so that other requests do not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from api.server.errors import ServiceBusy

MOST_WAITING = 100
"""Waiting look-ups of one kind; each keeps the body of its request in memory."""

GONE_SECONDS = 0.5
"""Seconds between two looks at whether a caller has left."""

PROBE_SECONDS = 5.0
"""Seconds after which the database counts as not answering."""

T = TypeVar("T")


class Interest:
    """Whether anybody still waits for the result of a look-up: its thread asks from time to time."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def end(self) -> None:
        """Say that nobody waits any more."""
        self._ended.set()

    def check(self) -> None:
        """Check that somebody waits.

        Raises:
            ServiceBusy: nobody does.
        """
        if self._ended.is_set():
            raise ServiceBusy("the look-up was given up: its caller has left, or the service stops")


class Lookups:
    """Runs work that may take long or read much, such as a check; a few at a time.

    Args:
        threads: number of look-ups that run at the same time.
        waiting: number of look-ups that may wait.
    """

    def __init__(self, threads: int, waiting: int = MOST_WAITING) -> None:
        self.threads, self.waiting = threads, waiting
        self.pending = 0
        self._interests = set[Interest]()
        # Created on first use, because it belongs to an event loop.
        self._limiter: CapacityLimiter | None = None

    async def run_work(self, work: Callable[..., T], *given: object) -> T:
        """Run `work` in one of the threads, and return its result.

        Raises:
            ServiceBusy: too many look-ups are waiting.
        """
        if self.pending >= self.threads + self.waiting:
            raise ServiceBusy(f"too many requests that may take long are running or waiting ({self.pending})")
        self._limiter = self._limiter or CapacityLimiter(self.threads)
        self.pending += 1
        try:
            return await to_thread.run_sync(work, *given, limiter=self._limiter)
        finally:
            self.pending -= 1

    async def run_while_wanted(
        self, is_gone: Callable[[], Awaitable[bool]], work: Callable[[Interest], T]
    ) -> T:
        """Run `work` as `run_work`; end the interest in it when the caller leaves, or the service stops.

        Args:
            is_gone: returns whether the caller has left.
            work: checks the interest that it is given.

        Raises:
            ServiceBusy: too many look-ups are waiting, or nobody waits for this one.
        """
        interest = Interest()

        def run() -> T:
            interest.check()  # the caller may have left while the look-up waited
            return work(interest)

        self._interests.add(interest)
        watcher = asyncio.create_task(self._end_interest(is_gone, interest))
        try:
            return await self.run_work(run)
        finally:
            watcher.cancel()
            self._interests.discard(interest)

    async def _end_interest(self, is_gone: Callable[[], Awaitable[bool]], interest: Interest) -> None:
        while not await is_gone():
            await asyncio.sleep(GONE_SECONDS)
        interest.end()

    def close(self) -> None:
        """End the interest in all look-ups, so that the service can stop."""
        for interest in self._interests:
            interest.end()


class SharedProbe:
    """A probe that all callers share: a target that does not answer blocks only one thread.

    Args:
        ask: the probe; returns or raises when the target answers.
        seconds: timeout.
    """

    def __init__(self, ask: Callable[[], object], seconds: float = PROBE_SECONDS) -> None:
        self._ask, self.seconds = ask, seconds
        self._answer: asyncio.Task[object] | None = None

    async def wait_for_answer(self) -> None:
        """Wait for an answer.

        Raises:
            TimeoutError: no answer in time.
            Exception: the exception of `ask`.
        """
        if self._answer is None or self._answer.done():
            self._answer = asyncio.create_task(asyncio.to_thread(self._ask))
            # Reads the exception, so that asyncio does not log it if no caller waits any more.
            self._answer.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        await asyncio.wait_for(asyncio.shield(self._answer), self.seconds)
