"""Reading a log while somebody else writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

BLOCK_BYTES = 64 * 1024

MOST_BYTES = 16 * 2**20
"""Bytes that are read of a log at once, however many lines are asked for."""


def read_last_lines(path: Path, count: int) -> tuple[bytes, int]:
    """Read the last lines of a file, from its end backwards.

    Args:
        path: the file; one that is not there is empty.
        count: how many lines; fewer come where they would be more than `MOST` bytes.

    Returns:
        The bytes, and the position in the file after them.
    """
    try:
        with path.open("rb") as file:
            end = position = file.seek(0, 2)
            blocks: list[bytes] = []
            breaks = 0
            # One break more than there are lines: the last may end with one, and one stands before the first.
            while position > 0 and breaks <= count and end - position < MOST_BYTES:
                size = min(BLOCK_BYTES, position)
                position -= size
                file.seek(position)
                blocks.insert(0, file.read(size))
                breaks += blocks[0].count(b"\n")
    except FileNotFoundError:
        return b"", 0
    lines = b"".join(blocks).splitlines(keepends=True)
    return b"".join(lines[max(0, len(lines) - count) :]), end


def read_from_position(path: Path, position: int) -> tuple[bytes, int]:
    """Read a file from a position on.

    Args:
        path: the file; one that is not there is empty.
        position: where to begin; nothing stands beyond the end.

    Returns:
        The bytes, no more than `MOST`, and the position in the file after them.
    """
    found = _read_from(path, position, MOST_BYTES)
    return found, position + len(found)


class EndedJobs:
    """Whether jobs have ended: asked of the store once for all who follow the log of one.

    Args:
        ended: tells whether a job has; asked off the event loop.
        seconds: how long an answer is good for.
    """

    def __init__(self, ended: Callable[[str], bool], seconds: float = 0.5) -> None:
        self._ask_store, self.seconds = ended, seconds
        self._answers: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def has_ended(self, job_id: str) -> bool:
        """Tell whether a job had ended, no longer ago than an answer is good for."""
        now = time.monotonic()
        if job_id not in self._answers or self._stale(job_id, now):
            for old in [each for each in self._answers if self._stale(each, now)]:
                del self._answers[old]
            self._answers[job_id] = now, asyncio.create_task(asyncio.to_thread(self._ask_store, job_id))
        # One who goes away must not take the answer from the others.
        return await asyncio.shield(self._answers[job_id][1])

    def _stale(self, job_id: str, now: float) -> bool:
        at, answer = self._answers[job_id]
        return answer.done() and now - at > self.seconds


async def follow_file(
    path: Path, position: int, ended: Callable[[], Awaitable[bool]], period: float = 0.3
) -> AsyncIterator[bytes]:
    """Give what is appended to a file, until its writer has ended and everything is read.

    Args:
        path: the file; it may come to be later.
        position: where to begin.
        ended: tells whether the writer has ended.
        period: seconds between two looks.
    """
    while True:
        # Asked before reading: what was written before the end is then read for certain.
        over = await ended()
        block = await asyncio.to_thread(_read_from, path, position)
        position += len(block)
        if block:
            yield block
        elif over:
            return
        else:
            await asyncio.sleep(period)


def _read_from(path: Path, position: int, most: int = BLOCK_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            # Not every system lets a file be sought far beyond its end.
            file.seek(min(position, file.seek(0, 2)))
            return file.read(most) if file.tell() == position else b""
    except FileNotFoundError:
        return b""
