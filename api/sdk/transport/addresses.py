"""Network addresses: which of them only this machine can reach."""

from __future__ import annotations

import ipaddress

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host in LOOPBACK_NAMES:
        return True
    found = parse_address(host)
    return found is not None and found.is_loopback


def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address; None for a name or any other text.

    A socket for both IP versions writes a version 4 address as `::ffff:10.0.0.1`; it is read as `10.0.0.1`.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
