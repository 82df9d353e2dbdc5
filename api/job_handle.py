"""`JobHandle`: one job, seen from a client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import httpx

from api import calls
from api.calls import Call
from api.round_table import columns, csv_lines
from api.stream import Message, messages
from fedsim.errors import ServiceError, Unreachable
from jobs.records import Job, RoundRecord
from jobs.states import FINAL, JobState

if TYPE_CHECKING:
    from api.client import FedSimClient

PATIENCE = 60.0
"""Seconds for which a watcher tries to come back to a service that has gone away."""

PASSING = frozenset({429, 502, 503, 504})


class Rounds(Sequence[RoundRecord]):
    """The records of a job's rounds, in their order."""

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self._records = list(records)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Rounds: ...
    def __getitem__(self, index: int | slice) -> RoundRecord | Rounds:
        if isinstance(index, slice):
            return Rounds(self._records[index])
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Rounds({len(self)} records)"

    def to_csv(self, path: str | Path) -> Path:
        """Write a CSV file, one line for each round, and return its path."""
        path = Path(path)
        path.write_text("".join(csv_lines(columns(self), self)), encoding="utf-8")
        return path


class JobHandle:
    """One job of a service.

    Attributes:
        id: the job's id.
        job: the job as it was when last heard of; `refresh()` asks again.
    """

    def __init__(self, client: FedSimClient, job: Job) -> None:
        self._client, self.job = client, job
        self.id = job.id

    def __repr__(self) -> str:
        return (
            f"JobHandle({self.id!r}, {self.state}, round {self.job.rounds_done} of {self.job.rounds_total})"
        )

    @property
    def state(self) -> JobState:
        """The state when last heard of."""
        return self.job.state

    def refresh(self) -> Job:
        """Ask the service how the job stands, keep the answer in `job` and return it."""
        self.job = self._client.send(calls.get_job(self.id))
        return self.job

    def events(self, after: int = 0) -> Iterator[Message]:
        """Follow everything that happens to the job, from its start, until it has ended.

        A lost connection is taken up again where it broke.

        Args:
            after: leave out the events up to this id.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        lost_at: float | None = None
        while True:
            try:
                with self._client.stream(calls.events(self.id, after)) as response:
                    for message in messages(response.iter_lines()):
                        after, lost_at = message.id, None
                        yield message
                        if message.data.get("terminal"):
                            return
                    if response.status_code == httpx.codes.NO_CONTENT:
                        return
                reason = "it ended the stream"
            except httpx.TransportError as error:
                reason = str(error)
            except ServiceError as error:
                if error.status not in PASSING:
                    raise
                reason = str(error)
            lost_at = self._pause(lost_at, reason)

    def _pause(self, lost_at: float | None, reason: str) -> float:
        now = time.monotonic()
        lost_at = now if lost_at is None else lost_at
        if now - lost_at > PATIENCE:
            raise Unreachable(f"{self._client.url} has not answered for {PATIENCE:.0f} s: {reason}")
        time.sleep(min(2.0, 0.1 + (now - lost_at) / 4))
        return lost_at

    def watch(self) -> Iterator[RoundRecord]:
        """Yield the record of every round: the past ones, then each as it ends, until the job has ended."""
        latest = 0
        for message in self.events():
            if message.type == "round":
                record = RoundRecord.model_validate(message.data)
                if record.round > latest:
                    latest = record.round
                    yield record
        self.refresh()

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            The final state: SUCCEEDED, FAILED or CANCELLED.

        Raises:
            TimeoutError: the time is over and the job has not ended.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while self.refresh().state not in FINAL:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {self.id} is {self.state} after {timeout:g} s")
            time.sleep(pause if end is None else max(0.0, min(pause, end - time.monotonic())))
            pause = min(1.0, pause * 1.5)
        return self.state

    def rounds(self, after: int = 0) -> Rounds:
        """Read the records of the rounds that have ended, from round `after + 1` on."""
        records: list[RoundRecord] = []
        position: int | None = after
        while position is not None:
            page, position = self._client.send(calls.rounds(self.id, position))
            records += page
        return Rounds(records)

    def logs(self, tail: int | None = None) -> str:
        """Read the last `tail` lines of the job's own log; the service has a default for None."""
        return self._client.send(calls.logs(self.id, tail))

    def follow_logs(self, tail: int | None = None) -> Iterator[str]:
        """Yield the last lines of the log, then each line as it is written, until the job has ended.

        Raises:
            Unreachable: the connection is lost.
        """
        call: Call[str] = calls.logs(self.id, tail, follow=True)
        try:
            with self._client.stream(call) as response:
                yield from response.iter_lines()
        except httpx.TransportError as error:
            raise Unreachable(f"the connection to {self._client.url} was lost: {error}") from error

    def cancel(self) -> JobState:
        """Wish the job to end, and return its state: a queued one is CANCELLED, a running one CANCELLING."""
        self.job = self._client.send(calls.cancel(self.id))
        return self.state

    def resume(self) -> JobState:
        """Have the job go on from its last checkpoint, and return its state: QUEUED.

        Raises:
            Conflict: it has neither failed nor been cancelled.
        """
        self.job = self._client.send(calls.resume(self.id))
        return self.state

    def delete(self) -> None:
        """Remove the job, its rounds and its files from the service.

        Raises:
            Conflict: the job has not ended.
        """
        self._client.send(calls.delete(self.id))
