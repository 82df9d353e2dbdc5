"""`AsyncFedSimClient`: the SDK for programs that run on asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from api.sdk.async_job_handle import AsyncJobHandle
from api.sdk.client_methods import ClientMethods
from api.sdk.transport.connection import BaseClient
from api.sdk.transport.senders import AsyncSender, Sender

__all__ = ["AsyncFedSimClient", "AsyncJobHandle"]


class AsyncFedSimClient(BaseClient[httpx.AsyncBaseTransport], ClientMethods):
    """A client of a fedsim service, for asyncio.

    It has the methods of `FedSimClient`: `await` a method with one result, and use `async for` with `jobs()`.

    >>> import asyncio
    >>> from fedsim import AsyncFedSimClient
    >>> async def main():
    ...     async with AsyncFedSimClient() as client:  # as FedSimClient
    ...         job = await client.submit("demo", set={"rounds": 3})
    ...         async for record in job.watch():
    ...             print(f"round {record.round} of {job.job.rounds_total}")
    ...         return job.state
    >>> asyncio.run(main())
    round 1 of 3
    round 2 of 3
    round 3 of 3
    <JobState.SUCCEEDED: 'SUCCEEDED'>
    """

    def _make_sender(self, transport: httpx.AsyncBaseTransport | None, options: dict[str, Any]) -> Sender:
        return AsyncSender(transport, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
