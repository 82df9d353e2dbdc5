"""The version of fedsim, as the metadata of its installation has it."""

from __future__ import annotations

from functools import cache
from importlib import metadata

DISTRIBUTION = "fedsim-ray"
"""The name of this package for pip. Another package is called fedsim there."""

CLIENT_DISTRIBUTION = "fedsim-client"
"""The same package with only the libraries of a client; `client/setup.py` builds it."""


@cache
def find_version() -> str:
    """Return the version, or "0+unknown" in a checkout that was never installed."""
    for name in (DISTRIBUTION, CLIENT_DISTRIBUTION):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "0+unknown"
