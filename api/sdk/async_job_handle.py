"""`AsyncJobHandle`: one job, seen from an asynchronous client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from api.sdk import calls, flows
from api.sdk.artifact_file import Artifact, target
from api.sdk.following import Following, LogFollowing, NewRounds
from api.sdk.job_handle import JobView
from api.sdk.rounds import Rounds
from api.sdk.stream import Message
from fedsim.errors import ServiceError
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState

if TYPE_CHECKING:
    from api.sdk.async_client import AsyncFedSimClient


class AsyncJobHandle(JobView):
    """One job of a service; each method does what the one of `JobHandle` with its name does."""

    def __init__(self, client: AsyncFedSimClient, job: Job) -> None:
        super().__init__(job)
        self._client = client

    async def refresh(self, *, patient: bool = False) -> Job:
        """Ask the service how the job stands, keep the answer in `job` and return it."""
        if patient:
            self.job = await self._client.drive(flows.standing(self.id))
        else:
            self.job = await self._client.send(calls.get_job(self.id))
        return self.job

    async def events(self, after: int = 0) -> AsyncIterator[Message]:
        """Follow everything that happens to the job; see `JobHandle.events`.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        following = Following(self._client.url, after)
        while True:
            try:
                async with self._client.stream(calls.events(self.id, following.after)) as response:
                    following.begin(response)
                    async for line in response.aiter_lines():
                        if (message := following.line(line)) is not None:
                            yield message
                        if following.over:
                            break
            except (httpx.TransportError, ServiceError) as error:
                following.broken(error)
            if following.over:
                return
            await asyncio.sleep(following.pause())

    async def watch(self) -> AsyncIterator[RoundRecord]:
        """Yield the record of every round until the job has ended: `async for record in job.watch()`."""
        rounds = NewRounds()
        async for message in self.events():
            if (record := rounds.of(message)) is not None:
                yield record
        await self.refresh(patient=True)

    async def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended, and return its final state.

        Raises:
            TimeoutError: it has not, after `timeout` seconds.
        """
        self.job = await self._client.drive(flows.wait_for(self.id, timeout))
        return self.state

    async def rounds(self, after: int = 0) -> Rounds:
        """Read the records of the rounds that have ended, from round `after + 1` on."""
        return Rounds(await self._client.drive(flows.all_rounds(self.id, after)))

    async def logs(self, tail: int | None = None) -> str:
        """Read the last `tail` lines of the job's own log; the service has a default for None."""
        return await self._client.send(calls.logs(self.id, tail))

    async def follow_logs(self, tail: int | None = None) -> AsyncIterator[str]:
        """Yield the last lines of the log, then each line as it is written, until the job has ended.

        A lost connection is taken up again where it broke.

        Raises:
            Unreachable: the service has not answered for a minute.
        """
        following = LogFollowing(self._client.url, self.id, tail)
        while not following.over:
            try:
                async with self._client.stream(following.call()) as response:
                    following.begin(response)
                    async for block in response.aiter_bytes():
                        for line in following.take(block):
                            yield line
                for line in following.ended((await self.refresh()).state):
                    yield line
            except (httpx.TransportError, ServiceError) as error:
                following.broken(error)
            if not following.over:
                await asyncio.sleep(following.pause())

    async def artifacts(self) -> list[Artifact]:
        """List the files that the job has left so far."""
        return await self._client.send(calls.artifacts(self.id))

    async def artifact(self, name: str, path: str | Path | None = None) -> Path:
        """Fetch one of these files, whole or not at all, and return where it is.

        Args:
            name: of the artifact.
            path: the file to write, or a folder; by default the artifact's name, in the working folder.

        Raises:
            ArtifactNotFound: the job has no artifact of this name.
        """
        where = target(name, path)
        await self._client.download(calls.artifact(self.id, name), where)
        return where

    async def cancel(self) -> JobState:
        """Wish the job to end, and return its state: a queued one is CANCELLED, a running one CANCELLING."""
        self.job = await self._client.send(calls.cancel(self.id))
        return self.state

    async def resume(self) -> JobState:
        """Have the job go on from its last checkpoint, and return its state: QUEUED.

        Raises:
            Conflict: it has neither failed nor been cancelled.
        """
        self.job = await self._client.send(calls.resume(self.id))
        return self.state

    async def clone(
        self,
        *,
        set: Mapping[str, Any] | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
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
        return AsyncJobHandle(
            self._client, await self._client.send(calls.clone(self.id, set or {}, priority, labels, key))
        )

    async def delete(self) -> None:
        """Remove the job, its rounds and its files from the service.

        Raises:
            Conflict: the job has not ended.
        """
        await self._client.send(calls.delete(self.id))
