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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from api import calls, flows
from api.artifact_file import written_aside
from api.async_job_handle import AsyncJobHandle
from api.calls import Call
from api.connection import Attempts, address, request, result, stream_request
from api.flows import Flow
from api.specs import SpecSource, SweepSource, as_mapping, read_members
from fedsim.errors import FedsimError

if TYPE_CHECKING:
    from api.sweep_handle import AsyncSweepHandle
    from api.sweeps import News
    from jobs.cluster import ClusterState
    from jobs.plan import Plan

__all__ = ["AsyncFedSimClient", "AsyncJobHandle"]

T = TypeVar("T")


class AsyncFedSimClient:
    """A connection to a fedsim service, for asyncio; each method does what `FedSimClient`'s does.

    Args:
        url: where the service is; by default `FEDSIM_URL`, else http://127.0.0.1:8000.
        token: the service's token, where it asks for one; by default `FEDSIM_TOKEN`.
        timeout: seconds to wait for one answer.
        transport: an httpx transport to use instead of the network.

    Raises:
        SettingsError: the URL or the token cannot be one.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url, options = address(url, token, timeout)
        self._http = httpx.AsyncClient(transport=transport, **options)

    def __repr__(self) -> str:
        return f"AsyncFedSimClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        await self._http.aclose()

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
        call = calls.submit(as_mapping(spec, set), priority, labels or {}, key)
        return AsyncJobHandle(self, await self.send(call))

    async def plan(self, spec: SpecSource, *, set: Mapping[str, Any] | None = None) -> Plan:
        """Have a spec measured where it would run; see `FedSimClient.plan`.

        Raises:
            SpecError: the spec is wrong; holds every fault.
        """
        return await self.send(calls.plan(as_mapping(spec, set)))

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
        from api.sweep_handle import AsyncSweepHandle
        from api.sweeps import submit_missing

        handle = AsyncSweepHandle(self, *read_members(sweep))
        await self.drive(submit_missing(handle, resume, news))
        return handle

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

    async def send(self, call: Call[T]) -> T:
        """Send one call, again after a pause where that is safe and the failure may pass.

        Raises:
            FedsimError: the service refuses; see `api.calls.ERRORS`.
            Unreachable: nobody answers.
        """
        attempts = Attempts(call, self.url)
        while True:
            try:
                response = await self._http.send(request(self._http, call))
            except httpx.TransportError as error:
                pause = attempts.lost(error)
            else:
                if response.is_success:
                    return result(call, response)
                pause = attempts.refused(response)
            await asyncio.sleep(pause)

    async def drive(self, flow: Flow[T]) -> T:
        """Send the calls of a flow, one after the other, and return its result."""
        step = partial(next, flow)
        while True:
            try:
                call = step()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                step = partial(flow.send, await self._answer(call))
            except FedsimError as error:
                step = partial(flow.throw, error)

    async def _answer(self, call: Call[Any] | float) -> Any:
        return await (self.send(call) if isinstance(call, Call) else asyncio.sleep(call))

    async def download(self, call: Call[Any], path: Path) -> None:
        """Write the answer to a call into a file, from the start again where the connection breaks.

        Raises:
            FedsimError: the service refuses.
            Unreachable: nobody answers, or the connection breaks again and again.
        """
        attempts = Attempts(call, self.url)
        while True:
            try:
                with written_aside(path) as file:
                    async with self.stream(call) as response:
                        async for block in response.aiter_bytes():
                            file.write(block)
                return
            except httpx.TransportError as error:
                pause = attempts.lost(error)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Open a stream: one attempt, whose answer is read as it comes.

        Raises:
            FedsimError: the service refuses.
            httpx.TransportError: the connection failed, or was lost on the way.
        """
        response = await self._http.send(stream_request(self._http, call), stream=True)
        try:
            if not response.is_success:
                await response.aread()
                raise calls.error_of(response)
            yield response
        finally:
            await response.aclose()
