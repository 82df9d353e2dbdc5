"""Reads the log of a job while another process writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

BLOCK_BYTES = 64 * 1024

MOST_BYTES = 16 * 2**20
"""Most bytes of a log in one answer, for any number of lines."""


def find_last_lines(path: Path, count: int) -> tuple[int, int]:
    """Find the last lines of a file, from its end backwards, without keeping them in memory.

    Args:
        path: the file; a missing file counts as empty.
        count: number of lines; fewer if they are longer than `MOST_BYTES`.

    Returns:
        The positions of their first byte and after their last byte.
    """
    try:
        with path.open("rb") as file:
            end = position = file.seek(0, 2)
            left = count
            while left and position > 0 and end - position < MOST_BYTES:
                size = min(BLOCK_BYTES, position)
                position -= size
                file.seek(position)
                block = file.read(size)
                # The last byte of the file may end the last line, and begins no other.
                at = len(block) - (position + size == end)
                while (at := block.rfind(b"\n", 0, at)) >= 0:
                    left -= 1
                    if not left:
                        return position + at + 1, end
    except FileNotFoundError:
        return 0, 0
    return (position if count else end), end


def find_piece(path: Path, begin: int) -> tuple[int, int]:
    """Find the piece of a file from a position on, at most `MOST_BYTES`.

    Args:
        path: the file; a missing file counts as empty.
        begin: first byte; after the end of the file the piece is empty.

    Returns:
        The positions of its first byte and after its last byte.
    """
    try:
        return begin, max(begin, min(begin + MOST_BYTES, path.stat().st_size))
    except FileNotFoundError:
        return begin, begin


async def read_piece(path: Path, begin: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a file between two positions in blocks, as fast as the caller takes them."""
    while begin < end:
        block = await asyncio.to_thread(_read_from, path, begin, min(BLOCK_BYTES, end - begin))
        if not block:
            return  # the job was deleted
        begin += len(block)
        yield block


class EndedJobs:
    """Cached answers to whether jobs have ended; all followers of a log share one query.

    Args:
        ended: returns whether a job has ended; called outside the event loop.
        seconds: how long an answer is valid.
    """

    def __init__(self, ended: Callable[[str], bool], seconds: float = 0.5) -> None:
        self._ask_store, self.seconds = ended, seconds
        self._answers: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def has_ended(self, job_id: str) -> bool:
        """Return whether a job has ended; the answer may be `seconds` old."""
        now = time.monotonic()
        if job_id not in self._answers or self._is_stale(job_id, now):
            for old in [each for each in self._answers if self._is_stale(each, now)]:
                del self._answers[old]
            self._answers[job_id] = now, asyncio.create_task(asyncio.to_thread(self._ask_store, job_id))
        # A caller that disconnects must not cancel the query of the others.
        return await asyncio.shield(self._answers[job_id][1])

    def _is_stale(self, job_id: str, now: float) -> bool:
        at, answer = self._answers[job_id]
        return answer.done() and now - at > self.seconds


async def follow_file(
    path: Path, position: int, ended: Callable[[], Awaitable[bool]], period: float = 0.3
) -> AsyncIterator[bytes]:
    """Yield the bytes that are appended to a file, until its writer has ended and all bytes are read.

    Args:
        path: the file; it may be created later.
        position: first byte.
        ended: returns whether the writer has ended.
        period: seconds between two reads.
    """
    while True:
        # Checked before reading, so that no byte before the end is missed.
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
            # Some systems cannot seek far beyond the end of a file.
            file.seek(min(position, file.seek(0, 2)))
            return file.read(most) if file.tell() == position else b""
    except FileNotFoundError:
        return b""
