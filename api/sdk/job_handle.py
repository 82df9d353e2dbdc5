"""`JobHandle`: one job, seen from a client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from api.sdk import calls, flows
from api.sdk.artifact_file import Artifact, target
from api.sdk.following import Following, LogFollowing, NewRounds
from api.sdk.rounds import Rounds
from api.sdk.stream import Message
from fedsim.errors import ServiceError
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState

if TYPE_CHECKING:
    from api.sdk.client import FedSimClient

__all__ = ["JobHandle", "JobView", "Rounds"]


class JobView:
    """What is known of a job without asking.

    Attributes:
        id: the job's id.
        job: the job as it was when last heard of; `refresh()` asks again.
    """

    def __init__(self, job: Job) -> None:
        self.id, self.job = job.id, job

    def __repr__(self) -> str:
        done = f"round {self.job.rounds_done} of {self.job.rounds_total}"
        return f"{type(self).__name__}({self.id!r}, {self.state}, {done})"

    @property
    def state(self) -> JobState:
        """The state when last heard of."""
        return self.job.state


class JobHandle(JobView):
    """One job of a service."""

    def __init__(self, client: FedSimClient, job: Job) -> None:
        super().__init__(job)
        self._client = client

    def refresh(self, *, patient: bool = False) -> Job:
        """Ask the service how the job stands, keep the answer in `job` and return it.

        Args:
            patient: outlast a service that is away for less than a minute, as a watcher does.
        """
        if patient:
            self.job = self._client.drive(flows.standing(self.id))
        else:
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
        following = Following(self._client.url, after)
        while True:
            try:
                with self._client.stream(calls.events(self.id, following.after)) as response:
                    following.begin(response)
                    for line in response.iter_lines():
                        if (message := following.line(line)) is not None:
                            yield message
                        if following.over:
                            break
            except (httpx.TransportError, ServiceError) as error:
                following.broken(error)
            if following.over:
                return
            time.sleep(following.pause())

    def watch(self) -> Iterator[RoundRecord]:
        """Yield the record of every round: the past ones, then each as it ends, until the job has ended."""
        rounds = NewRounds()
        for message in self.events():
            if (record := rounds.of(message)) is not None:
                yield record
        self.refresh(patient=True)

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            The final state: SUCCEEDED, FAILED or CANCELLED.

        Raises:
            TimeoutError: the time is over and the job has not ended.
            Unreachable: the service has not answered for a minute.
        """
        self.job = self._client.drive(flows.wait_for(self.id, timeout))
        return self.state

    def rounds(self, after: int = 0) -> Rounds:
        """Read the records of the rounds that have ended, from round `after + 1` on."""
        return Rounds(self._client.drive(flows.all_rounds(self.id, after)))

    def logs(self, tail: int | None = None) -> str:
        """Read the last `tail` lines of the job's own log; the service has a default for None."""
        return self._client.send(calls.logs(self.id, tail))

    def follow_logs(self, tail: int | None = None) -> Iterator[str]:
        """Yield the last lines of the log, then each line as it is written, until the job has ended.

        A lost connection is taken up again where it broke.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        following = LogFollowing(self._client.url, self.id, tail)
        while not following.over:
            try:
                with self._client.stream(following.call()) as response:
                    following.begin(response)
                    for block in response.iter_bytes():
                        yield from following.take(block)
                yield from following.ended(self.refresh().state)
            except (httpx.TransportError, ServiceError) as error:
                following.broken(error)
            if not following.over:
                time.sleep(following.pause())

    def artifacts(self) -> list[Artifact]:
        """List the files that the job has left so far."""
        return self._client.send(calls.artifacts(self.id))

    def artifact(self, name: str, path: str | Path | None = None) -> Path:
        """Fetch one of these files, whole or not at all, and return where it is.

        Args:
            name: of the artifact.
            path: the file to write, or a folder; by default the artifact's name, in the working folder.

        Raises:
            ArtifactNotFound: the job has no artifact of this name.
        """
        where = target(name, path)
        self._client.download(calls.artifact(self.id, name), where)
        return where

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

    def clone(
        self,
        *,
        set: Mapping[str, Any] | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Queue a new job with this one's spec; its rounds begin anew.

        Args:
            set: fields of the spec to set on top, by dotted path: `{"seed": 1, "local.lr": 0.05}`.
            priority: by default this job's.
            labels: in place of this job's.
            idempotency_key: clones with the same key are one job; by default a new key for each call.

        Raises:
            SpecError: the spec that comes of it is wrong; holds every fault.
        """
        key = idempotency_key or uuid.uuid4().hex
        return JobHandle(
            self._client, self._client.send(calls.clone(self.id, set or {}, priority, labels, key))
        )

    def delete(self) -> None:
        """Remove the job, its rounds and its files from the service.

        Raises:
            Conflict: the job has not ended.
        """
        self._client.send(calls.delete(self.id))
