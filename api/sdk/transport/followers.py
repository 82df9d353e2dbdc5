"""Follow the events or the log of a job over connections that break."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import httpx

from api.sdk.calls import POSITION, Call, events, logs
from api.sdk.transport.connection import RETRY_STATUSES, Connection
from api.sdk.transport.stream import Assembler, Message
from fedsim.errors import FedsimError, ServiceError, Unreachable
from jobs.store.records import Job, RoundRecord
from jobs.store.states import FINAL

PATIENCE = 60.0
"""Seconds after which a follower stops to reconnect to a service that does not answer."""

T = TypeVar("T")


async def follow(connection: Connection, follower: Follower[T]) -> AsyncIterator[T]:
    """Yield the items of a stream to its end; open it again where a connection breaks.

    Raises:
        FedsimError: the service refuses.
        Unreachable: the service has not answered for `PATIENCE` seconds.
    """
    while not follower.over:
        try:
            async with connection.open_stream(follower.next_call()) as response:
                follower.begin_answer(response)
                async for block in connection.sender.read_blocks(response):
                    for item in follower.read_block(block):
                        yield item
                    if follower.over:
                        break
            for item in await follower.end_answer():
                yield item
        except (httpx.TransportError, ServiceError) as error:
            follower.note_failure(error)
        if not follower.over:
            await connection.sender.sleep(follower.next_pause())


class Follower(ABC, Generic[T]):
    """A position in a stream of items, over several connections.

    Args:
        url: of the service, for the message.

    Attributes:
        over: whether the last item has come.
    """

    def __init__(self, url: str) -> None:
        self.url, self.over = url, False
        self._lost_at: float | None = None
        self._reason = "it ended the stream"
        self._rest = b""

    @abstractmethod
    def next_call(self) -> Call[Any]:
        """Give the call of the next connection, which continues at this position."""

    @abstractmethod
    def read_block(self, block: bytes) -> Iterator[T]:
        """Read the next bytes of an answer, and yield the items that they complete."""

    def begin_answer(self, response: httpx.Response) -> None:
        """Begin to read the answer of a new connection."""
        self._reason, self._rest = "it ended the stream", b""

    async def end_answer(self) -> list[T]:
        """End an answer that came whole, and give the items after its last line break."""
        return []

    def split_lines(self, block: bytes) -> list[bytes]:
        """Add bytes to the incomplete line before them, and give the lines that are complete."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        return lines

    def note_failure(self, error: httpx.TransportError | FedsimError) -> None:
        """Note the reason why a connection broke.

        Raises:
            FedsimError: the error, if it is a permanent refusal.
        """
        if isinstance(error, FedsimError) and not is_temporary(error):
            raise error
        self._reason = str(error) or type(error).__name__

    def next_pause(self) -> float:
        """Give the seconds to wait before the next connection.

        Raises:
            Unreachable: the service has not answered for `PATIENCE` seconds.
        """
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > PATIENCE:
            raise Unreachable(f"{self.url} has not answered for {PATIENCE:.0f} s: {self._reason}")
        return min(2.0, 0.1 + (now - self._lost_at) / 4)


class EventFollower(Follower[Message]):
    """A position in the events of a job.

    Args:
        url: of the service, for the message.
        job_id: the job.
        after: the id of the last event that is known already.

    Attributes:
        after: the id of the last event that came.
    """

    def __init__(self, url: str, job_id: str, after: int) -> None:
        super().__init__(url)
        self.job_id, self.after = job_id, after
        self._assembler = Assembler()

    def next_call(self) -> Call[None]:
        """Give the call of the next connection; the service continues after the last event."""
        return events(self.job_id, self.after)

    def begin_answer(self, response: httpx.Response) -> None:
        """Begin with an empty event; 204 means that no further event will come."""
        super().begin_answer(response)
        self._assembler = Assembler()
        self.over = response.status_code == httpx.codes.NO_CONTENT

    def read_block(self, block: bytes) -> Iterator[Message]:
        """Yield the new events that a block completes, up to the job's last one."""
        for line in self.split_lines(block):
            if (message := self._read_line(_decode_line(line))) is not None:
                yield message
            if self.over:
                return

    def _read_line(self, line: str) -> Message | None:
        if line.startswith(":"):
            self._lost_at = None  # a comment shows that the service is there, even if the job does nothing
        message = self._assembler.add_line(line)
        if message is None:
            return None
        self.over, self._lost_at = bool(message.data.get("terminal")), None
        # A message without an id is no event of the job, and does not change the position.
        if 0 < message.id <= self.after:
            return None
        self.after = message.id or self.after
        return message


class LogFollower(Follower[str]):
    """A position in the log of a job.

    Args:
        url: of the service, for the message.
        job_id: the job.
        tail: how many of the last lines come first; the service has a default for None.
        read_job: asks for the job.
    """

    def __init__(
        self, url: str, job_id: str, tail: int | None, read_job: Callable[[], Awaitable[Job]]
    ) -> None:
        super().__init__(url)
        self.job_id, self.tail, self.read_job = job_id, tail, read_job
        self._position: int | None = None
        self._ended = False

    def next_call(self) -> Call[str]:
        """Give the call of the next connection; it begins with the first incomplete line."""
        return logs(self.job_id, self.tail, follow=True, position=self._position)

    def begin_answer(self, response: httpx.Response) -> None:
        """Begin at the position of the answer."""
        super().begin_answer(response)
        self._lost_at, self._position = None, int(response.headers.get(POSITION, 0))

    def read_block(self, block: bytes) -> Iterator[str]:
        """Yield the lines that a block completes."""
        for line in self.split_lines(block):
            self._position = (self._position or 0) + len(line) + 1
            yield _decode_line(line)

    async def end_answer(self) -> list[str]:
        """Ask for the state of the job, and give the incomplete last line if the log is over.

        A service that stops ends its answers early. The log is over only if the job had ended before the
        answer began.
        """
        self.over, self._ended = self._ended, (await self.read_job()).state in FINAL
        return [_decode_line(self._rest)] if self.over and self._rest else []


def _decode_line(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


class NewRounds:
    """Reads the rounds of events, each round once: a restarted job repeats events of rounds."""

    def __init__(self) -> None:
        self._latest = 0

    def read_round(self, message: Message) -> RoundRecord | None:
        """Give the record of an event; None if the event is no round or the round came before."""
        if message.type != "round":
            return None
        record = RoundRecord.model_validate(message.data)
        if record.round <= self._latest:
            return None
        self._latest = record.round
        return record


def is_temporary(error: FedsimError) -> bool:
    """Tell whether an error may be temporary: no answer, or a refusal such as 503."""
    if isinstance(error, Unreachable):
        return True
    return isinstance(error, ServiceError) and error.status in RETRY_STATUSES
