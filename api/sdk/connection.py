"""What both clients do with a call: the request, the attempts, and what an answer or a silence means.

Nothing here sends anything: `api.sdk.client` does so with a blocking `httpx` client, `api.sdk.async_client`
with an asynchronous one.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

import httpx

from api.sdk.addresses import is_loopback
from api.sdk.calls import Call
from api.sdk.refusals import error_of
from fedsim.errors import ServiceError, ServiceUnreachable, SettingsError
from jobs.settings import check_token

DEFAULT_URL = "http://127.0.0.1:8000"

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Refusals that may pass by themselves."""

PAUSES = (0.2, 0.5, 1.0)
"""Seconds to wait before the second, third and fourth attempt of a call that may be repeated."""

LONGEST_PAUSE = 60.0
"""Seconds that a service may ask for with `Retry-After`; whoever asks for more is not waited for."""

CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection, where the timeout of the client is not shorter."""

T = TypeVar("T")


class Address(NamedTuple):
    """Where a service is, and how to speak to it.

    Attributes:
        url: without a slash at its end.
        options: arguments of an httpx client, synchronous or not.
    """

    url: str
    options: dict[str, Any]


def address(url: str | None, token: str | None, timeout: float) -> Address:
    """Work out where a service is.

    Args:
        url: by default `FEDSIM_URL`, else `DEFAULT_URL`.
        token: by default `FEDSIM_TOKEN`, else none.
        timeout: seconds to wait for an answer.

    Raises:
        SettingsError: the URL or the token cannot be one.
    """
    url = (url or os.environ.get("FEDSIM_URL") or DEFAULT_URL).rstrip("/")
    token = token or os.environ.get("FEDSIM_TOKEN")
    token = check_token(token) if token else None
    parts = _parts(url)
    here = is_loopback(parts.host)
    options = {
        "base_url": url,
        "timeout": httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        # Every watcher holds a connection for as long as it watches: their number has no bound.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # A proxy of the environment cannot know what runs on this machine.
        "trust_env": not here,
        # Without TLS nothing is verified; to load the certificates would take longer than most calls.
        "verify": not (here and parts.scheme == "http"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
    }
    return Address(url, options)


def _parts(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingsError(f"{url!r} is no address of a service", f"it looks like {DEFAULT_URL}")
    return parsed


def request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    """Build the request of a call."""
    timeout = http.timeout
    if call.patience is not None:
        timeout = httpx.Timeout(**{**timeout.as_dict(), "read": call.patience})
    return _build(http, call, timeout)


def stream_request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    """Build the request of a call whose answer goes on and on.

    Without a patience of its own, the call waits for each byte as long as it takes.
    """
    return _build(http, call, httpx.Timeout(**{**http.timeout.as_dict(), "read": call.patience}))


def _build(http: httpx.Client | httpx.AsyncClient, call: Call[Any], timeout: httpx.Timeout) -> httpx.Request:
    return http.build_request(
        call.method,
        call.path,
        params=call.query(),
        json=call.json,
        headers=dict(call.headers),
        timeout=timeout,
    )


def result(call: Call[T], response: httpx.Response) -> T:
    """Read the answer to a call.

    Raises:
        ServiceError: whoever answered is no fedsim, or one of another age.
    """
    try:
        return call.decode(response)
    except (ValueError, KeyError, TypeError) as error:
        message = f"{response.url} gave an answer that cannot be read: {type(error).__name__}"
        raise ServiceError(message, "is it a fedsim of this version?", status=response.status_code) from error


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    """Say that nobody answers."""
    why = str(error) or type(error).__name__
    hint = "start one with `fedsim serve`, or name another with --url or FEDSIM_URL"
    return ServiceUnreachable(f"no service answers at {url}: {why}", hint)


class Attempts:
    """The attempts of one call: how long to pause before the next, or that there is none.

    Args:
        call: is only repeated where that is safe.
        url: of the service, for the message.
    """

    def __init__(self, call: Call[Any], url: str) -> None:
        self.url = url
        self._left = list(PAUSES) if call.retry else []

    def lost(self, error: httpx.TransportError) -> float:
        """Give the seconds to pause after an attempt without an answer.

        Raises:
            Unreachable: it was the last one.
        """
        if not self._left:
            raise unreachable(self.url, error) from error
        return self._left.pop(0)

    def refused(self, response: httpx.Response) -> float:
        """Give the seconds to pause after a refusal: no less than the service asks for.

        Raises:
            FedsimError: what the refusal stands for, where it was the last attempt or will not pass.
        """
        asked = retry_after(response)
        if not self._left or response.status_code not in RETRY_STATUSES or asked > LONGEST_PAUSE:
            raise error_of(response)
        return max(self._left.pop(0), asked)


def retry_after(response: httpx.Response) -> float:
    """Read `Retry-After`, as seconds or as a date; 0 where there is none that can be read."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
