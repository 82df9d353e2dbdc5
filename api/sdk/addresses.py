"""Addresses: which of them are this machine's own, out of everybody else's reach."""

from __future__ import annotations

import ipaddress

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    if host in LOOPBACK_NAMES:
        return True
    found = parsed(host)
    return found is not None and found.is_loopback


def parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address; None for what is none.

    A socket for both kinds gives those of version 4 as `::ffff:10.0.0.1`; they are of version 4 all the same.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
