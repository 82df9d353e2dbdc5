"""`Connection` sends the calls of `api.sdk.calls` to one service, and repeats them where that is safe."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import httpx

from api.sdk.calls import Call
from api.sdk.refusals import make_error
from api.sdk.started_service import DEFAULT_URL, find_default_url
from api.sdk.transport.addresses import is_loopback
from api.sdk.transport.senders import Sender
from fedsim.base.files import open_aside
from fedsim.base.secret_urls import remove_secrets
from fedsim.errors import ServiceError, SettingsError, Unreachable
from jobs.settings import check_token

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses of temporary refusals."""

PAUSES = (0.2, 0.5, 1.0)
"""Seconds to wait before the second, third and fourth attempt of a call."""

LONG_ATTEMPT = 30.0
"""Seconds of work, without pauses, after which a refused call is not repeated."""

LONGEST_PAUSE = 60.0
"""The longest `Retry-After` that a client obeys, in seconds; a longer one is an error."""

CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection, unless the timeout of the client is shorter."""

T = TypeVar("T")
TransportT = TypeVar("TransportT")


class Address(NamedTuple):
    """The address of a service, and the settings of the connections to it.

    Attributes:
        url: without a slash at its end.
        options: arguments of an `httpx.Client` or `httpx.AsyncClient`.
    """

    url: str
    options: dict[str, Any]


def resolve_address(url: str | None, token: str | None, timeout: float) -> Address:
    """Find the address of a service from arguments and environment.

    Args:
        url: by default that of `find_default_url`.
        token: by default `FEDSIM_TOKEN`, else none.
        timeout: seconds to wait for an answer.

    Raises:
        SettingsError: the URL or the token is malformed.
    """
    url = (url or find_default_url()).rstrip("/")
    token = token or os.environ.get("FEDSIM_TOKEN")
    token = check_token(token) if token else None
    parts = parse_url(url)
    here = is_loopback(parts.host)
    options = {
        "base_url": url,
        "timeout": httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        # Every watcher holds a connection for as long as it watches: their number has no bound.
        # The service closes a connection after 5 s without a request; the next one may be on its way by then.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0),
        # A proxy of the environment cannot know what runs on this machine.
        "trust_env": not here,
        # Without TLS nothing is verified; to load the certificates would take longer than most calls.
        "verify": not (here and parts.scheme == "http"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
    }
    return Address(url, options)


def parse_url(url: str) -> httpx.URL:
    """Parse the address of a service.

    Raises:
        SettingsError: it is no address of a service.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        shown = remove_secrets(url)
        raise SettingsError(f"{shown!r} is no address of a service", f"it looks like {DEFAULT_URL}")
    return parsed


class Connection:
    """Sends calls to one service.

    Args:
        url: of the service, without secrets, for messages.
        sender: sends each request, blocking or awaited.
    """

    def __init__(self, url: str, sender: Sender) -> None:
        self.url, self.sender = url, sender

    async def send(self, call: Call[T]) -> T:
        """Send one call; after a temporary error, repeat it if that is safe. See `ClientMethods.send`."""
        attempts = Attempts(call, self.url)
        while True:
            try:
                async with self._open(call, _read_timeout(self.sender.http, call)) as response:
                    await self.sender.read_body(response)
            except httpx.TransportError as error:
                pause = attempts.pause_after_loss(error)
            else:
                if response.is_success:
                    return _decode_answer(call, response)
                pause = attempts.pause_after_refusal(response)
            await self.sender.sleep(pause)

    async def download(self, call: Call[Any], path: Path) -> None:
        """Write the answer to a call into a file; begin again if the connection breaks.

        Raises:
            FedsimError: the service refuses.
            Unreachable: the service does not answer, or each connection breaks.
        """
        attempts = Attempts(call, self.url)
        while True:
            try:
                async with self._open(call, call.patience) as response:
                    if response.is_success:
                        with open_aside(path) as file:
                            async for block in self.sender.read_blocks(response):
                                file.write(block)
                        return
                    await self.sender.read_body(response)
                    pause = attempts.pause_after_refusal(response)
            except httpx.TransportError as error:
                pause = attempts.pause_after_loss(error)
            await self.sender.sleep(pause)

    @asynccontextmanager
    async def open_stream(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Send one call once, and give its successful answer with an unread body.

        Raises:
            FedsimError: the service refuses.
            httpx.TransportError: the connection fails or breaks.
        """
        async with self._open(call, call.patience) as response:
            if not response.is_success:
                await self.sender.read_body(response)
                raise make_error(response)
            yield response

    @asynccontextmanager
    async def _open(self, call: Call[Any], read_timeout: float | None) -> AsyncIterator[httpx.Response]:
        http = self.sender.http
        request = http.build_request(
            call.method,
            call.path,
            params=call.query_params(),
            json=call.json,
            headers=dict(call.headers),
            timeout=httpx.Timeout(**{**http.timeout.as_dict(), "read": read_timeout}),
        )
        async with self.sender.open_answer(request) as response:
            yield response


def _read_timeout(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> float | None:
    return http.timeout.read if call.patience is None else call.patience


def _decode_answer(call: Call[T], response: httpx.Response) -> T:
    try:
        return call.decode(response)
    except (ValueError, KeyError, TypeError) as error:
        shown = remove_secrets(str(response.url))
        message = f"{shown} gave an answer that cannot be read: {type(error).__name__}"
        raise ServiceError(message, "is it a fedsim of this version?", status=response.status_code) from error


class Attempts:
    """The attempts of one call: each failure gives the pause before the next attempt, or an error.

    Args:
        call: repeated only if `call.retry` is true.
        url: of the service, for the message.
    """

    def __init__(self, call: Call[Any], url: str) -> None:
        self.url, self._began = url, time.monotonic()
        self._left = list(PAUSES) if call.retry else []

    def pause_after_loss(self, error: httpx.TransportError) -> float:
        """Give the seconds to wait after an attempt without an answer.

        Raises:
            Unreachable: it was the last attempt, or a service that hangs has already taken minutes.
        """
        took = time.monotonic() - self._began
        if not self._left or (took > LONG_ATTEMPT and isinstance(error, httpx.ReadTimeout)):
            hint = "start one with `fedsim serve`, or name another: FEDSIM_URL, --url, or FedSimClient(url)"
            reason = str(error) or type(error).__name__
            raise Unreachable(f"no service answers at {self.url}: {reason}", hint) from error
        pause = self._left.pop(0)
        self._began += pause
        return pause

    def pause_after_refusal(self, response: httpx.Response) -> float:
        """Give the seconds to wait after a refusal, at least its `Retry-After`.

        Raises:
            FedsimError: the refusal as an error, if it is permanent, it was the last attempt, or the attempts
                took long: a check that the service gave up after minutes would take these minutes again.
        """
        asked, took = read_retry_after(response), time.monotonic() - self._began
        is_permanent = response.status_code not in RETRY_STATUSES or asked > LONGEST_PAUSE
        if not self._left or is_permanent or took > LONG_ATTEMPT:
            raise make_error(response)
        pause = max(self._left.pop(0), asked)
        self._began += pause
        return pause


def read_retry_after(response: httpx.Response) -> float:
    """Read the header `Retry-After`, which holds seconds or a date; 0 if it is missing or malformed."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


class BaseClient(ABC, Generic[TransportT]):
    """The address of a client, and its connection."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        transport: TransportT | None = None,
    ) -> None:
        """Make a client; it connects with its first call.

        Args:
            url: of the service; by default `FEDSIM_URL`, else that of the service that was started on this
                machine with the same `FEDSIM_HOME`, else http://127.0.0.1:8000.
            token: of the service, if it asks for one; by default `FEDSIM_TOKEN`.
            timeout: seconds to wait for one answer. A call that checks or measures a spec waits longer.
            transport: an httpx transport to use instead of the network.

        Raises:
            SettingsError: the URL or the token is malformed.
        """
        self.url, options = resolve_address(url, token, timeout)
        self._connection = Connection(remove_secrets(self.url), self._make_sender(transport, options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.url!r})"

    @abstractmethod
    def _make_sender(self, transport: TransportT | None, options: dict[str, Any]) -> Sender:
        """Make the part that sends, blocking or awaited."""
