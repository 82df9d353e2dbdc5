"""How a blocking client sends calls: once, again, as a flow, as a stream, into a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from api.sdk.artifact_file import written_aside
from api.sdk.calls import Call
from api.sdk.connection import Attempts, address, request, result, stream_request
from api.sdk.flows import Flow
from api.sdk.refusals import error_of
from fedsim.errors import FedsimError

T = TypeVar("T")


class BlockingConnection:
    """A connection that waits for its answers.

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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url, options = address(url, token, timeout)
        self._http = httpx.Client(transport=transport, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Send one call, again after a pause where that is safe and the failure may pass.

        Raises:
            FedsimError: the service refuses; see `api.sdk.refusals.ERRORS`.
            Unreachable: nobody answers.
        """
        attempts = Attempts(call, self.url)
        while True:
            try:
                response = self._http.send(request(self._http, call))
            except httpx.TransportError as error:
                pause = attempts.lost(error)
            else:
                if response.is_success:
                    return result(call, response)
                pause = attempts.refused(response)
            time.sleep(pause)

    def drive(self, flow: Flow[T]) -> T:
        """Send the calls of a flow, one after the other, and return its result."""
        step = partial(next, flow)
        while True:
            try:
                call = step()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                step = partial(flow.send, self._answer(call))
            except FedsimError as error:
                step = partial(flow.throw, error)

    def _answer(self, call: Call[Any] | float) -> Any:
        return self.send(call) if isinstance(call, Call) else time.sleep(call)

    def download(self, call: Call[Any], path: Path) -> None:
        """Write the answer to a call into a file, from the start again where the connection breaks.

        Raises:
            FedsimError: the service refuses, and not for the moment alone.
            Unreachable: nobody answers, or the connection breaks again and again.
        """
        attempts = Attempts(call, self.url)
        while True:
            try:
                with self._opened(call) as response:
                    if response.is_success:
                        with written_aside(path) as file:
                            for block in response.iter_bytes():
                                file.write(block)
                        return
                    response.read()
                    pause = attempts.refused(response)
            except httpx.TransportError as error:
                pause = attempts.lost(error)
            time.sleep(pause)

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Open a stream: one attempt, whose answer is read as it comes.

        Raises:
            FedsimError: the service refuses.
            httpx.TransportError: the connection failed, or was lost on the way.
        """
        with self._opened(call) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            yield response

    @contextmanager
    def _opened(self, call: Call[Any]) -> Iterator[httpx.Response]:
        response = self._http.send(stream_request(self._http, call), stream=True)
        try:
            yield response
        finally:
            response.close()
