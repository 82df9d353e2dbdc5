"""`AsyncFedSimClient`: the SDK for programs that run on asyncio.

    >>> from fedsim import AsyncFedSimClient                                # doctest: +SKIP
    >>> async with AsyncFedSimClient() as client:
    ...     job = await client.submit("demo", set={"rounds": 5})
    ...     async for record in job.watch():
    ...         print(record.round, record.metrics.get("global_accuracy"))

It has the methods of `FedSimClient`, with the same arguments, results and errors.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from api.sdk import calls, flows
from api.sdk.async_connection import AsyncConnection
from api.sdk.async_job_handle import AsyncJobHandle
from api.sdk.specs import SpecSource, SweepSource, read_draft, read_members

if TYPE_CHECKING:
    from api.reports.comparison import Comparison
    from api.sdk.sweep_handle import AsyncSweepHandle
    from api.sdk.sweeps import News
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.plan import Plan

__all__ = ["AsyncFedSimClient", "AsyncJobHandle"]


class AsyncFedSimClient(AsyncConnection):
    """A connection to a fedsim service, for asyncio; each method does what `FedSimClient`'s does.

    Args:
        url: where the service is; by default `FEDSIM_URL`, else http://127.0.0.1:8000.
        token: the service's token, where it asks for one; by default `FEDSIM_TOKEN`.
        timeout: seconds to wait for one answer; where a spec is looked over or measured, longer.
        transport: an httpx transport to use instead of the network.

    Raises:
        SettingsError: the URL or the token cannot be one.
    """

    async def submit(
        self,
        spec: SpecSource,
        *,
        set: Mapping[str, Any] | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
        """Queue a job; see `FedSimClient.submit`.

        Raises:
            SpecError: the spec is wrong; holds every fault.
            DoesNotFit: what it asks for can never be placed on the service's cluster.
            Conflict: the key was used before, for something else.
        """
        key = idempotency_key or uuid.uuid4().hex
        # Specs are read and checked in a thread: that takes a moment, and the event loop has other work.
        draft = await asyncio.to_thread(read_draft, spec, set)
        data = await self.drive(flows.whole_faults(draft))
        return AsyncJobHandle(self, await self.send(calls.submit(data, priority, labels or {}, key)))

    async def plan(self, spec: SpecSource, *, set: Mapping[str, Any] | None = None) -> Plan:
        """Have a spec measured where it would run; see `FedSimClient.plan`.

        Raises:
            SpecError: the spec is wrong; holds every fault.
        """
        draft = await asyncio.to_thread(read_draft, spec, set)
        return await self.send(calls.plan(await self.drive(flows.whole_faults(draft))))

    async def job(self, job_id: str) -> AsyncJobHandle:
        """Get a job by its id, or by the beginning of it where no other job's id begins so.

        Raises:
            JobNotFound: there is none, or more than one.
        """
        return AsyncJobHandle(self, await self.drive(flows.find_job(job_id)))

    async def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        algorithm: str | None = None,
        search: str | None = None,
        order_by: str = "-created_at",
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJobHandle]:
        """List jobs, page by page as they are asked for: `async for job in client.jobs()`.

        The arguments are those of `FedSimClient.jobs`.
        """
        left, page_token, more = limit, None, limit != 0
        while more:
            size = flows.page_size(left)
            call = calls.list_jobs(
                state, label, order_by, size, page_token, algorithm=algorithm, search=search
            )
            page = await self.send(call)
            for job in page.jobs:
                yield AsyncJobHandle(self, job)
            left = left and left - len(page.jobs)
            page_token = page.next_page_token
            more = page_token is not None and left != 0

    async def sweep(
        self, sweep: SweepSource, *, resume: bool = False, news: News | None = None
    ) -> AsyncSweepHandle:
        """Submit the runs of a sweep that have no job yet; see `FedSimClient.sweep`.

        Raises:
            SpecError: the sweep or one of its specs is wrong; holds every fault.
        """
        # Specs are read and made here: most uses of the client never need that.
        from api.sdk.sweep_handle import AsyncSweepHandle
        from api.sdk.sweeps import submit_missing

        handle = AsyncSweepHandle(self, *await asyncio.to_thread(read_members, sweep))
        await self.drive(submit_missing(handle, resume, news))
        return handle

    async def compare(
        self, jobs: Iterable[str], *, metric: str = "global_accuracy", target: float | None = None
    ) -> Comparison:
        """Hold jobs against one target; see `FedSimClient.compare`.

        Raises:
            JobNotFound: one of them does not exist.
            SettingsError: no record has the metric.
        """
        return await self.drive(flows.compare_jobs(jobs, metric, target))

    async def catalogue(self, kind: str) -> list[dict[str, Any]]:
        """List what a spec can name: algorithms, models, datasets, partitions or presets."""
        return await self.send(calls.catalogue(kind))

    async def algorithms(self) -> list[dict[str, Any]]:
        """List the methods, each with the JSON schema of its parameters."""
        return await self.catalogue("algorithms")

    async def models(self) -> list[dict[str, Any]]:
        """List the models, each with the JSON schema of its parameters."""
        return await self.catalogue("models")

    async def datasets(self) -> list[dict[str, Any]]:
        """List the data sets, each with the JSON schema of its parameters and where its files are sought."""
        return await self.catalogue("datasets")

    async def partitions(self) -> list[dict[str, Any]]:
        """List the ways to deal a data set out to clients, each with the JSON schema of its parameters."""
        return await self.catalogue("partitions")

    async def presets(self) -> list[dict[str, Any]]:
        """List the specs that come with the service."""
        return await self.catalogue("presets")

    async def schema(self) -> dict[str, Any]:
        """Get the JSON schema of a spec."""
        return await self.send(calls.schema())

    async def cluster(self) -> ClusterState:
        """Look at the nodes, their CPUs and GPUs, what of them is free, and the actors of each job."""
        return await self.send(calls.cluster())

    async def version(self) -> dict[str, str]:
        """Ask for the versions of the service and of what it stands on."""
        return await self.send(calls.version())
