"""Wait for a job, or for a service that does not answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from api.sdk import calls
from api.sdk.transport import followers
from api.sdk.transport.connection import Connection
from fedsim.errors import ServiceError
from jobs.store.records import Job
from jobs.store.states import FINAL

T = TypeVar("T")

RETRY_SECONDS = 1.0
"""Seconds before a service that does not answer is asked again."""


async def retry_while_away(
    connection: Connection, ask: Callable[[], Awaitable[T]], end: float | None = None
) -> T:
    """Ask a question, and repeat it for up to `followers.PATIENCE` seconds while the service does not answer.

    Args:
        connection: waits between the attempts.
        ask: asks the question.
        end: the last moment for a further attempt, as `time.monotonic()` counts; None for none.

    Raises:
        FedsimError: a permanent refusal.
        Unreachable: the service has not answered in this time.
    """
    lost_at: float | None = None
    while True:
        try:
            return await ask()
        except ServiceError as error:
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            over = now - lost_at > followers.PATIENCE or (end is not None and now >= end)
            if over or not followers.is_temporary(error):
                raise
        await connection.sender.sleep(RETRY_SECONDS)


class Deadline:
    """The end of a wait, and its growing pauses.

    Args:
        timeout: seconds; None waits as long as necessary.
        first_pause: seconds before the second look.
        longest_pause: seconds between two looks, at most.

    Attributes:
        end: as `time.monotonic()` counts; None without a timeout.
    """

    def __init__(self, timeout: float | None, first_pause: float, longest_pause: float) -> None:
        self.end = None if timeout is None else time.monotonic() + timeout
        self._pause, self._longest = first_pause, longest_pause

    def is_over(self) -> bool:
        """Tell whether the time is over."""
        return self.end is not None and time.monotonic() >= self.end

    def next_pause(self) -> float:
        """Give the seconds to wait before the next look: 1.5 times the last pause, not beyond the end."""
        pause, self._pause = self._pause, min(self._longest, self._pause * 1.5)
        return pause if self.end is None else max(0.0, min(pause, self.end - time.monotonic()))


async def read_job(connection: Connection, job_id: str, end: float | None = None) -> Job:
    """Ask for a job, and repeat the question while the service does not answer."""
    return await retry_while_away(connection, lambda: connection.send(calls.get_job(job_id)), end)


async def wait_for_job(connection: Connection, job_id: str, timeout: float | None) -> Job:
    """Wait until a job has ended.

    Raises:
        TimeoutError: the job has not ended after `timeout` seconds.
    """
    deadline = Deadline(timeout, 0.1, 1.0)
    while True:
        job = await read_job(connection, job_id, deadline.end)
        if job.state in FINAL:
            return job
        if deadline.is_over():
            raise TimeoutError(f"job {job_id} is {job.state} after {timeout:g} s")
        await connection.sender.sleep(deadline.next_pause())
