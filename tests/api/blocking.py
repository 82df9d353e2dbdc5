"""The asynchronous client as one that blocks, so that one body of tests holds both to the same contract."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx

from api.sdk.async_client import AsyncFedSimClient
from api.sdk.async_job_handle import JobView
from api.sdk.client import FedSimClient
from api.sdk.sweeps import SweepView
from api.server.app import create_app
from tests.api.service import IdleQueue, RunningService


class Blocking:
    """An object whose coroutines are run to their end, and whose asynchronous generators are iterated."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **options: self._wrapped(self._runner.run(found(*args, **options)))
        if inspect.isasyncgenfunction(found):
            return lambda *args, **options: self._iterated(found(*args, **options))
        return self._wrapped(found)

    def _iterated(self, generator: Any) -> Iterator[Any]:
        end = object()
        try:
            while (item := self._runner.run(anext(generator, end))) is not end:
                yield self._wrapped(item)
        finally:
            self._runner.run(generator.aclose())

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(item) for item in value]
        return Blocking(value, self._runner) if isinstance(value, JobView | SweepView) else value


MakeClient = Callable[..., FedSimClient]
"""Makes a client, given what a client is given."""


@contextmanager
def client_maker(kind: str) -> Iterator[MakeClient]:
    """Make clients of one kind, `sync` or `async`, and close them at the end."""
    if kind == "sync":
        made: list[FedSimClient] = []

        def make(*args: Any, **options: Any) -> FedSimClient:
            made.append(FedSimClient(*args, **options))
            return made[-1]

        yield make
        for client in made:
            client.close()
        return
    with asyncio.Runner() as runner:
        pending: list[AsyncFedSimClient] = []

        def make_async(*args: Any, **options: Any) -> FedSimClient:
            pending.append(AsyncFedSimClient(*args, **options))
            return cast("FedSimClient", Blocking(pending[-1], runner))

        yield make_async
        for each in pending:
            runner.run(each.close())


Answer = int | Exception | dict[str, Any] | httpx.Response
"""What the network answers: a status, a body, a whole response, or an error that it raises."""

Answering = Callable[..., tuple[FedSimClient, list[httpx.Request]]]
"""Makes a client whose network gives these answers, and the list of what it will have asked."""


def response(answer: Answer) -> httpx.Response:
    """Give an answer, as the network does."""
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, httpx.Response):
        return answer
    if isinstance(answer, dict):
        return httpx.Response(answer.get("status", 200), json=answer)
    return httpx.Response(answer, json={"detail": "no", "code": "SOME"})


@contextmanager
def client_of(kind: str, service: RunningService) -> Iterator[FedSimClient]:
    """Connect to a service: `sync` over its socket, `async` in this process, with no network between."""
    if kind == "sync":
        with FedSimClient(service.url) as client:
            yield client
        return
    app = create_app(service.settings, service.store, IdleQueue())
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        opened = AsyncFedSimClient(service.url, transport=httpx.ASGITransport(app))
        yield cast("FedSimClient", Blocking(opened, runner))
        runner.run(opened.close())
        runner.run(lifespan.__aexit__(None, None, None))
