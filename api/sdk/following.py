"""Following a job's events or its log over connections that may break: what has come, and what to do then."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from api.sdk.calls import POSITION, Call, logs
from api.sdk.connection import RETRY_STATUSES
from api.sdk.stream import Assembler, Message
from fedsim.errors import FedsimError, ServiceError, ServiceUnreachable
from jobs.store.records import RoundRecord
from jobs.store.states import FINAL, JobState

PATIENCE = 60.0
"""Seconds for which a watcher tries to come back to a service that has gone away."""


class Patience:
    """What to do about connections that break, one after the other.

    Args:
        url: of the service, for the message.

    Attributes:
        over: whether there is nothing more to come.
    """

    def __init__(self, url: str) -> None:
        self.url, self.over = url, False
        self._lost_at: float | None = None
        self._reason = "it ended the stream"

    def broken(self, error: httpx.TransportError | FedsimError) -> None:
        """Take note of a connection that broke or was refused.

        Raises:
            FedsimError: a refusal that will not pass.
        """
        if isinstance(error, FedsimError) and not passes(error):
            raise error
        self._reason = str(error) or type(error).__name__

    def pause(self) -> float:
        """Give the seconds to wait before the next connection.

        Raises:
            Unreachable: the service has been silent for too long.
        """
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > PATIENCE:
            raise ServiceUnreachable(f"{self.url} has not answered for {PATIENCE:.0f} s: {self._reason}")
        return min(2.0, 0.1 + (now - self._lost_at) / 4)


class Following(Patience):
    """One watcher's position in the events of a job, over as many connections as it takes.

    Args:
        url: of the service, for the message.
        after: the id of the last event that is known already.

    Attributes:
        after: the id of the last event that came: where the next connection goes on.
    """

    def __init__(self, url: str, after: int) -> None:
        super().__init__(url)
        self.after = after
        self._assembler = Assembler()

    def begin(self, response: httpx.Response) -> None:
        """Take note of a new connection."""
        self._assembler = Assembler()
        self._reason = "it ended the stream"
        self.over = response.status_code == httpx.codes.NO_CONTENT

    def line(self, line: str) -> Message | None:
        """Take a line; gives the event that it completes, if it does."""
        if line.startswith(":"):
            self._lost_at = None  # it says that it is there, though nothing happens to the job
        message = self._assembler.take(line)
        if message is None:
            return None
        self.over, self._lost_at = bool(message.data.get("terminal")), None
        # What has no id of its own is no event of the job, and moves nobody on.
        if 0 < message.id <= self.after:
            return None
        self.after = message.id or self.after
        return message


class LogFollowing(Patience):
    """One reader's position in the log of a job, over as many connections as it takes.

    Args:
        url: of the service, for the message.
        job_id: the job.
        tail: how many of the last lines come first; the service has a default for None.
    """

    def __init__(self, url: str, job_id: str, tail: int | None) -> None:
        super().__init__(url)
        self.job_id, self.tail = job_id, tail
        self._position: int | None = None
        self._rest = b""
        self._ended = False

    def call(self) -> Call[str]:
        """Give the call of the next connection: it begins with the first line that has not come whole."""
        return logs(self.job_id, self.tail, follow=True, position=self._position)

    def begin(self, response: httpx.Response) -> None:
        """Take note of a new connection."""
        self._reason, self._lost_at, self._rest = "it ended the stream", None, b""
        self._position = int(response.headers.get(POSITION, 0))

    def take(self, block: bytes) -> Iterator[str]:
        """Take a piece of the log; gives the lines that it completes."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._position = (self._position or 0) + len(line) + 1
            yield _text(line)

    def ended(self, state: JobState) -> Iterator[str]:
        """Take note of a whole answer and of the state after it; gives the last line, where it has no end.

        A service that stops ends its answers too. So only an answer that began after the job had ended is
        known to have everything.
        """
        self.over, self._ended = self._ended, state in FINAL
        if self.over and self._rest:
            yield _text(self._rest)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


class NewRounds:
    """Leaves every round through once, whatever comes again after a restart of the job."""

    def __init__(self) -> None:
        self._latest = 0

    def of(self, message: Message) -> RoundRecord | None:
        """Give the record that an event brings, if it is of a round that has not been seen."""
        if message.type != "round":
            return None
        record = RoundRecord.model_validate(message.data)
        if record.round <= self._latest:
            return None
        self._latest = record.round
        return record


def passes(error: FedsimError) -> bool:
    """Tell whether an error may pass by itself: silence, or a refusal of the moment."""
    if isinstance(error, ServiceUnreachable):
        return True
    return isinstance(error, ServiceError) and error.status in RETRY_STATUSES
