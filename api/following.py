"""Following a job's events over connections that may break: what has come, and what to do about a silence."""

from __future__ import annotations

import time

import httpx

from api.connection import RETRY_STATUSES
from api.stream import Assembler, Message
from fedsim.errors import FedsimError, ServiceError, Unreachable
from jobs.records import RoundRecord

PATIENCE = 60.0
"""Seconds for which a watcher tries to come back to a service that has gone away."""


class Following:
    """One watcher's position in the events of a job, over as many connections as it takes.

    Args:
        url: of the service, for the message.
        after: the id of the last event that is known already.

    Attributes:
        after: the id of the last event that came: where the next connection goes on.
        over: whether there is nothing more to come.
    """

    def __init__(self, url: str, after: int) -> None:
        self.url, self.after, self.over = url, after, False
        self._assembler = Assembler()
        self._lost_at: float | None = None
        self._reason = ""

    def begin(self, response: httpx.Response) -> None:
        """Take note of a new connection."""
        self._assembler = Assembler()
        self._reason = "it ended the stream"
        self.over = response.status_code == httpx.codes.NO_CONTENT

    def line(self, line: str) -> Message | None:
        """Take a line; gives the event that it completes, if it does."""
        message = self._assembler.take(line)
        if message is not None:
            # What has no id of its own is no event of the job, and moves nobody on.
            self.after, self._lost_at = message.id or self.after, None
            self.over = bool(message.data.get("terminal"))
        return message

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
            raise Unreachable(f"{self.url} has not answered for {PATIENCE:.0f} s: {self._reason}")
        return min(2.0, 0.1 + (now - self._lost_at) / 4)


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
    if isinstance(error, Unreachable):
        return True
    return isinstance(error, ServiceError) and error.status in RETRY_STATUSES
