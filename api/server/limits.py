"""Limits that are refused with a 429: requests per minute, and open streams."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.sdk.transport.addresses import is_loopback, parse_address
from api.server.errors import make_problem

MOST_CALLERS = 10_000
"""Callers in memory; beyond this number the caller with the oldest request is dropped."""

IPV6_NETWORK = 64
"""Bits of an IPv6 address that name a network. All addresses of a network count as one caller."""


class RateLimit:
    """A token bucket for each caller.

    Args:
        per_minute: size of a bucket, and requests added per minute; 0 means no limit.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self._clock = per_minute, clock
        # For each caller: the requests left in its bucket, and the time of this value.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take_request(self, address: str) -> int:
        """Count one request of a caller.

        Args:
            address: IP address of the caller; loopback addresses have no limit.

        Returns:
            0 if the request is allowed; else the whole seconds until the caller may try again.
        """
        if not self.per_minute or is_loopback(address):
            return 0
        caller, now, pace = find_network(address), self._clock(), self.per_minute / 60
        left, then = self._buckets.pop(caller, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - then) * pace)
        allowed = left >= 1
        self._buckets[caller] = (left - allowed, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0 if allowed else math.ceil((1 - left) / pace)


def find_network(address: str) -> str:
    """Return the caller of an address: the IPv4 address itself, or the network of an IPv6 address.

    All callers with anything else, such as a long text that somebody wrote into `X-Forwarded-For`, are one.
    """
    found = parse_address(address)
    if found is None:
        return "unknown"
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, IPV6_NETWORK), strict=False))


class OpenStreams:
    """The counter of open streams.

    Args:
        most: largest number of open streams.
    """

    def __init__(self, most: int) -> None:
        self.most, self.open = most, 0


class LimitedStream(StreamingResponse):
    """A stream that counts as open while it is sent, and is refused if too many are open.

    Args:
        content: pieces of the body.
        media_type: media type of the body.
        streams: counter of open streams.
        instead: the request that answers without a stream.
    """

    RETRY_SECONDS = 5

    def __init__(
        self, content: AsyncIterable[bytes], media_type: str, streams: OpenStreams, instead: str
    ) -> None:
        # By default nginx would buffer the stream.
        super().__init__(content, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self.streams, self.instead = streams, instead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or the refusal."""
        if self.streams.open >= self.streams.most:
            detail = f"too many open streams ({self.streams.open:,})"
            headers = {"Retry-After": str(self.RETRY_SECONDS)}
            hint = f"try again later, or read {self.instead}"
            refusal = make_problem(429, detail, hint=hint, headers=headers)
            await refusal(scope, receive, send)
            return
        self.streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.streams.open -= 1
