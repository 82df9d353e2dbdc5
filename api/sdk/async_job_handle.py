"""`AsyncJobHandle`: one job of a service. `JobHandle` has the same methods, which block."""

from __future__ import annotations

import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from api.sdk import calls
from api.sdk.artifact_file import Artifact, choose_path
from api.sdk.rounds import Rounds, read_rounds
from api.sdk.specs import SetFields, read_fields
from api.sdk.transport.connection import Connection
from api.sdk.transport.followers import EventFollower, LogFollower, NewRounds, follow
from api.sdk.transport.stream import Message
from api.sdk.waiting import read_job, wait_for_job
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState

if TYPE_CHECKING:
    from api.reports.notebook import LiveTable, Picture


class JobView(ABC):
    """The last known state of a job."""

    @property
    @abstractmethod
    def job(self) -> Job:
        """The last answer about the job; `refresh()` asks again."""

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """The state in the last answer."""
        return self.job.state

    def __repr__(self) -> str:
        done = f"round {self.job.rounds_done} of {self.job.rounds_total}"
        return f"{type(self).__name__}({self.id!r}, {self.state}, {done})"

    def _repr_html_(self) -> str:
        from api.reports.notebook import render_job

        return render_job(self.job)


class AsyncJobHandle(JobView):
    """One job of a service, for asyncio."""

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection, self._job = connection, job

    @property
    def job(self) -> Job:
        """The last answer about the job; `refresh()` asks again."""
        return self._job

    async def refresh(self, *, patient: bool = False) -> Job:
        """Ask the service for the job, and keep the answer in `job`.

        Args:
            patient: repeat the question for up to a minute while the service does not answer.

        Returns:
            The job.

        Raises:
            JobNotFound: the job has been deleted.
            Unreachable: the service does not answer.
        """
        if patient:
            self._job = await read_job(self._connection, self.id)
        else:
            self._job = await self._connection.send(calls.get_job(self.id))
        return self._job

    async def events(self, after: int = 0) -> AsyncIterator[Message]:
        """Yield all events of the job from its start, then each new one, until the job has ended.

        If the connection breaks, the method connects again and continues after the last event.

        Args:
            after: leave out the events up to this id.

        Yields:
            The events: rounds, changes of the state, warnings.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        follower = EventFollower(self._connection.url, self.id, after)
        async for message in follow(self._connection, follower):
            yield message

    async def watch(self) -> AsyncIterator[RoundRecord]:
        """Yield the record of each past round, then of each new round, until the job has ended.

        In a notebook, a table of the job and its rounds is shown, and redrawn in place.

        Yields:
            The records of the rounds; each round comes once.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        rounds, table = NewRounds(), _open_live_table()
        async for message in self.events():
            if (record := rounds.read_round(message)) is not None:
                if table is not None:
                    table.add(self.job, record)
                yield record
        await self.refresh(patient=True)
        if table is not None:
            table.draw(self.job)

    async def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended.

        Args:
            timeout: seconds; None waits as long as necessary.

        Returns:
            The final state: SUCCEEDED, FAILED or CANCELLED.

        Raises:
            TimeoutError: the job has not ended in this time.
            Unreachable: the service has not answered for a minute.
        """
        self._job = await wait_for_job(self._connection, self.id, timeout)
        return self.state

    async def rounds(self, after: int = 0) -> Rounds:
        """Read the records of the rounds that have ended.

        Args:
            after: leave out the rounds up to this number.

        Returns:
            The records, as a sequence with `to_csv()` and `to_pandas()`.
        """
        return await read_rounds(self._connection, self.id, after)

    async def plot(self, name: str | None = None) -> Picture:
        """Draw a picture of the rounds that have ended; see `Rounds.plot`."""
        return (await self.rounds()).plot(name)

    async def logs(self, tail: int | None = None) -> str:
        """Read the last lines of the job's log.

        Args:
            tail: the number of lines; by default the service's, 500.

        Returns:
            The lines, as one text.
        """
        return await self._connection.send(calls.logs(self.id, tail))

    async def follow_logs(self, tail: int | None = None) -> AsyncIterator[str]:
        """Yield the last lines of the job's log, then each new line, until the job has ended.

        If the connection breaks, the method connects again and continues after the last line.

        Args:
            tail: the number of old lines; by default the service's, 500.

        Yields:
            The lines, without their ends.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        follower = LogFollower(self._connection.url, self.id, tail, self.refresh)
        async for line in follow(self._connection, follower):
            yield line

    async def artifacts(self) -> list[Artifact]:
        """List the files of the job, such as `report.json`.

        Returns:
            The name, size and description of each file; the model comes when the job has succeeded.
        """
        return await self._connection.send(calls.artifacts(self.id))

    async def artifact(self, name: str, path: str | Path | None = None) -> Path:
        """Download one file of the job. After an error, no incomplete file stays.

        Args:
            name: of the artifact, such as `model.safetensors`.
            path: a file or a folder; by default a file with the artifact's name in the working folder.

        Returns:
            The path of the file.

        Raises:
            ArtifactNotFound: the job has no artifact of this name.
        """
        where = choose_path(name, path)
        await self._connection.download(calls.artifact(self.id, name), where)
        return where

    async def cancel(self) -> JobState:
        """Cancel the job.

        Returns:
            The state: CANCELLED for a job that waited, CANCELLING for a job that runs.
        """
        self._job = await self._connection.send(calls.cancel(self.id))
        return self.state

    async def resume(self, rounds: int | None = None) -> JobState:
        """Continue a failed or cancelled job from its last checkpoint, or give an ended job more rounds.

        Args:
            rounds: the new number of rounds, with those before; by default the number of the spec.

        Returns:
            The state: QUEUED.

        Raises:
            Conflict: the job has not ended, or it has succeeded and `rounds` is not given.
            RequestError: the job has these rounds already, or its rounds depend on their number.
        """
        self._job = await self._connection.send(calls.resume(self.id, rounds))
        return self.state

    async def clone(
        self,
        *,
        set: SetFields | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
        """Queue a new job with the spec of this job; it begins with round 1.

        Args:
            set: fields of the spec to change, by dotted path: `{"seed": 1, "local.lr": 0.05}`, or as
                `PATH=VALUE` items.
            priority: by default the priority of this job.
            labels: by default the labels of this job; none if it is of a sweep, and fields change.
            idempotency_key: calls with the same key make one job; by default each call has a new key.

        Returns:
            The new job.

        Raises:
            SpecError: the changed spec is wrong; the error lists every fault.
            RequestError: the priority, a label or the key is wrong.
        """
        from jobs.spec.submission import check_job_fields

        check_job_fields(priority, labels, idempotency_key)
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        job = await self._connection.send(calls.clone(self.id, read_fields(set), priority, labels, key))
        return AsyncJobHandle(self._connection, job)

    async def delete(self) -> None:
        """Delete the job, its rounds and its files from the service.

        Raises:
            Conflict: the job has not ended.
        """
        await self._connection.send(calls.delete(self.id))


def _open_live_table() -> LiveTable | None:
    """Return a table for the cell of a notebook; None elsewhere, where its module is not imported."""
    if "IPython" not in sys.modules:
        return None
    from api.reports.notebook import LiveTable, is_in_notebook

    return LiveTable() if is_in_notebook() else None
