"""The two ways to send a request: `BlockingSender` blocks the thread, `AsyncSender` is awaited.

All other code of the SDK is written once, as coroutines on top of a `Sender`. The coroutines of a
`BlockingSender` never suspend, so that `api.sdk.transport.blocking` runs them without an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, closing
from typing import Any, ParamSpec, Protocol, TypeVar

import httpx

P = ParamSpec("P")
T = TypeVar("T")


class Sender(Protocol):
    """Sends requests, reads their answers and waits in between."""

    @property
    def http(self) -> httpx.Client | httpx.AsyncClient:
        """The httpx client that builds the requests."""

    def open_answer(self, request: httpx.Request) -> AbstractAsyncContextManager[httpx.Response]:
        """Send a request, give its answer with an unread body, and close the answer at the end."""

    async def read_body(self, response: httpx.Response) -> None:
        """Read the whole body of an open answer."""

    def read_blocks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the body of an open answer, block by block as it comes."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def run_function(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function that computes for a while; the event loop, if there is one, goes on."""

    async def close(self) -> None:
        """Close all connections."""


class BlockingSender:
    """Blocks the thread until an answer is there.

    Args:
        transport: an httpx transport to use instead of the network.
        options: further arguments of the `httpx.Client`.
    """

    def __init__(self, transport: httpx.BaseTransport | None, options: dict[str, Any]) -> None:
        self.http = httpx.Client(transport=transport, **options)

    @asynccontextmanager
    async def open_answer(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Send a request and block until its answer begins."""
        with closing(self.http.send(request, stream=True)) as response:
            yield response

    async def read_body(self, response: httpx.Response) -> None:
        """Block until the body is there."""
        response.read()

    async def read_blocks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Block until each block is there."""
        for block in response.iter_bytes():
            yield block

    async def sleep(self, seconds: float) -> None:
        """Block for this time."""
        time.sleep(seconds)

    async def run_function(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call the function."""
        return function(*args, **options)

    async def close(self) -> None:
        """Close all connections."""
        self.http.close()


class AsyncSender:
    """Leaves the event loop to others until an answer is there.

    Args:
        transport: an httpx transport to use instead of the network.
        options: further arguments of the `httpx.AsyncClient`.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None, options: dict[str, Any]) -> None:
        self.http = httpx.AsyncClient(transport=transport, **options)

    async def close(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    async def run_function(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call the function in a thread."""
        return await asyncio.to_thread(function, *args, **options)

    async def sleep(self, seconds: float) -> None:
        """Await this time."""
        await asyncio.sleep(seconds)

    def read_blocks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Await each block."""
        return response.aiter_bytes()

    async def read_body(self, response: httpx.Response) -> None:
        """Await the body."""
        await response.aread()

    @asynccontextmanager
    async def open_answer(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Send a request and await the beginning of its answer."""
        async with aclosing(await self.http.send(request, stream=True)) as response:
            yield response
