"""Checks of a request: token, `Host`, `Origin` and size of the body.

Three threats. Other machines on the network: without a token the service listens on loopback only. A foreign
web page that makes the reader's browser send requests to a local server: it sends a foreign `Origin`, or a
foreign `Host` if its own name points at 127.0.0.1. A body that fills the memory.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.sdk.transport.addresses import LOOPBACK_NAMES, is_loopback
from api.server.errors import make_problem
from api.server.limits import RateLimit
from fedsim.errors import SettingsError
from jobs.settings import Limits, Settings

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/favicon.ico"})
"""Addresses without a token: health, and the page, which must load before it can ask for the token."""

OPEN_PREFIX = "/static/"

API_HEADERS = ((b"cache-control", b"no-store"),)
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
OTHER_SITES = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` for pages of other sites, and of other ports and names of this site."""


def close_beyond_loopback(host: str, settings: Settings) -> Settings:
    """Return the settings of a service on this address; beyond loopback, its Ray needs a token too.

    Raises:
        SettingsError: other machines can reach the address, and the service has no token.
    """
    if is_loopback(host):
        return settings
    if not settings.token:
        raise SettingsError(
            f"--host {host!r} is reachable from other machines, but no token is set",
            "set FEDSIM_TOKEN or give --token-file, or listen on 127.0.0.1",
        )
    return replace(settings, allow_open_ray=bool(settings.allow_open_ray))


def read_token_file(path: Path) -> str:
    """Read a token from a file, without surrounding white space.

    Raises:
        SettingsError: the file cannot be read, or is empty.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--token-file {str(path)!r} cannot be read: {error}") from error
    if not token:
        raise SettingsError(
            f"--token-file {str(path)!r} holds no token", "write a long random string into the file"
        )
    return token


@dataclass(frozen=True)
class AllowedHosts:
    """The allowed host names of this server.

    Attributes:
        names: host names without a port, in lower case.
        addresses: whether any IP address is allowed too. A foreign page can point its own name at this
            server, but not an address, so this is safe.
        origins: hosts of proxies; their pages may call the server although `Host` differs.
    """

    names: frozenset[str] = LOOPBACK_NAMES
    addresses: bool = False
    origins: frozenset[str] = frozenset()

    @classmethod
    def for_address(cls, host: str, extra: Collection[str] = ()) -> AllowedHosts:
        """Allow the names of the listening address, and the names in `extra`."""
        more = frozenset(name.lower() for name in extra)
        if is_loopback(host):
            return cls(LOOPBACK_NAMES | {host.lower()} | more, False, more)
        own = {host.lower(), socket.gethostname().lower()}
        return cls(LOOPBACK_NAMES | own | more, True, more)

    def allows_host(self, header: str) -> bool:
        """Return whether a `Host` header names this server."""
        name = _host_name(header)
        return name in self.names or (self.addresses and _is_address(name))

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether a page of `origin` may call the server under the name `host`."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return False
        return parts.netloc.lower() == host.lower() or (parts.hostname or "") in self.origins


def _host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class SecurityLayer:
    """The layer that checks host, origin, token and size of a request, and adds headers to the answer."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: AllowedHosts,
        limits: Limits,
    ) -> None:
        self.app, self.hosts, self.body_limit = app, hosts, limits.body_bytes
        self.rate = RateLimit(limits.requests_per_minute)
        self.token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        add_headers = _with_headers(send, scope["path"])
        headers = Headers(scope=scope)
        refusal = self._refuse_too_many(scope) or self._refuse(scope["path"], headers)
        if refusal is not None:
            await refusal(scope, receive, add_headers)
            return
        await self._serve_limited(scope, receive, add_headers)

    def _refuse_too_many(self, scope: Scope) -> Response | None:
        if _is_open(scope["path"]):
            return None
        seconds = self.rate.take_request((scope.get("client") or ("",))[0])
        if not seconds:
            return None
        detail = f"more than {self.rate.per_minute:,} requests per minute from this address"
        headers = {"Retry-After": str(seconds)}
        return make_problem(429, detail, hint=f"try again in {seconds} s", headers=headers)

    def _refuse(self, path: str, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.hosts.allows_host(host):
            hint = "use the address of the server, or start the server with --allow-host NAME"
            return make_problem(403, f"unknown host name {host!r}", hint=hint)
        if origin is not None and not self.hosts.allows_origin(origin, host):
            detail = f"pages of {origin!r} may not call this server"
            return make_problem(403, detail, hint="open the page of this server")
        if not _is_open(path) and _is_from_foreign_page(headers):
            return make_problem(403, "pages of other sites may not call this server")
        # The same answer for a missing and for a wrong token, so that it reveals nothing.
        if not _is_open(path) and not self._is_authorised(headers.get("authorization", "")):
            return make_problem(401, "a token is required", headers={"WWW-Authenticate": "Bearer"})
        if _length(headers) > self.body_limit:
            return self._too_large()
        return None

    def _too_large(self) -> Response:
        return make_problem(
            413, f"the body is larger than {self.body_limit:,} bytes", hint="send a smaller body"
        )

    def _is_authorised(self, header: str) -> bool:
        if self.token is None:
            return True
        scheme, _, token = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self.token)

    async def _serve_limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Counts a body without a length while it arrives; a too large length was refused before.
        seen, started = 0, False

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.body_limit:
                raise _TooLarge
            return message

        async def mark_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive_counted, mark_start)
        except _TooLarge:
            if started:
                raise
            await self._too_large()(scope, receive, send)


def _is_open(path: str) -> bool:
    """Whether an address needs no token."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _is_from_foreign_page(headers: Headers) -> bool:
    """Whether a browser says that a foreign page makes this request, such as for an image, without `Origin`.

    Whoever follows a link or types an address may read the answer.
    """
    is_foreign = headers.get("sec-fetch-site") in OTHER_SITES and "origin" not in headers
    return is_foreign and headers.get("sec-fetch-mode") != "navigate"


class _TooLarge(Exception):
    """The body is larger than the limit."""


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0


def _with_headers(send: Send, path: str) -> Send:
    extra = SAFE_HEADERS if path.startswith(OPEN_PREFIX) else SAFE_HEADERS + API_HEADERS

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers
