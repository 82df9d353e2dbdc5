"""How often somebody may ask, and how many streams may be open: what is refused with a 429."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.sdk.addresses import is_loopback, parse_address
from api.server.errors import make_problem

MOST_CALLERS = 10_000
"""Callers that are remembered; beyond that the one that has been silent longest is forgotten."""

IPV6_NETWORK = 64
"""Bits of an IPv6 address that are somebody's own network: one caller, however many addresses it takes."""


class RateLimit:
    """A bucket of requests for each caller, filled at an even pace.

    Args:
        per_minute: what a full bucket holds, and what flows into it in a minute; 0 is no limit.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self._clock = per_minute, clock
        # Of each caller, what is left in its bucket and when that was so.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take_request(self, address: str) -> int:
        """Take one request of a caller.

        Args:
            address: its IP address; those of loopback are never counted.

        Returns:
            0 where it may go on; else the whole seconds after which it may ask again.
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
    """Name the caller behind an address: an IPv4 address itself, of an IPv6 address its network."""
    found = parse_address(address)
    if found is None:
        return address
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, IPV6_NETWORK), strict=False))


class OpenStreams:
    """Counts the open streams.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self.most, self.open = most, 0


class LimitedStream(StreamingResponse):
    """A stream that is refused where too many are open already, and counted for as long as it is sent.

    Args:
        content: what is sent.
        media_type: of what is sent.
        streams: the count.
    """

    RETRY_SECONDS = 5

    def __init__(self, content: AsyncIterable[bytes], media_type: str, streams: OpenStreams) -> None:
        # nginx, as it is set up by default, would keep what is sent until it has a page of it.
        super().__init__(content, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self.streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or the refusal."""
        if self.streams.open >= self.streams.most:
            detail = f"{self.streams.open:,} streams are open, and there may be no more"
            headers = {"Retry-After": str(self.RETRY_SECONDS)}
            refusal = make_problem(
                429, detail, hint="come again later, or ask for the rounds", headers=headers
            )
            await refusal(scope, receive, send)
            return
        self.streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.streams.open -= 1
