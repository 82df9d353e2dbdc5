"""The files in fedsim's home through which the local Ray's keeper and its users exchange messages.

The keeper locks `ray.lock` while it lives: another process with the same number is then not mistaken for it.
`ray.json` holds the addresses once Ray answers. `ray.token` holds the token that Ray asks for. A service that
still needs the local Ray touches `api.alive`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsim.base.files import open_aside
from jobs.file_locks import is_locked

LOCK, ADDRESSES, TOKEN, ALIVE, LOG = "ray.lock", "ray.json", "ray.token", "api.alive", "ray.log"

ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The variable by which Ray uses loopback, read at its import. By default Ray takes the machine's external
address, and breaks when a laptop changes networks."""


@dataclass(frozen=True)
class Addresses:
    """The content of `ray.json`.

    Attributes:
        pid: the keeper's process.
        temporary: the private directory, with Ray's folder for sockets and logs.
        dashboard: URL of Ray's dashboard and Jobs API.
        gcs: `host:port` for `ray.init`; empty until Ray answers.
    """

    pid: int
    temporary: str
    dashboard: str
    gcs: str = ""


def read_addresses(home: Path) -> Addresses | None:
    """Return the addresses in `ray.json`; None if the file is missing or broken."""
    try:
        return Addresses(**json.loads((home / ADDRESSES).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_addresses(home: Path, addresses: Addresses) -> None:
    """Replace `ray.json` in one step, so that a reader never finds half a file."""
    with open_aside(home / ADDRESSES) as file:
        file.write(json.dumps(asdict(addresses)).encode())


def read_or_make_token(home: Path) -> str:
    """Return the token of the local Ray; make it on first use, readable by its owner only."""
    path = home / TOKEN
    if not path.exists():  # nothing is written otherwise: a full disk must not end a Ray that has its token
        _make_token(path)
    return path.read_text("ascii").strip()


def _make_token(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        aside = path.with_name(f"{TOKEN}.{secrets.token_hex(4)}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        try:
            # The link fails if the token exists: of two first users one makes the token, and both read it.
            os.link(aside, path)
        finally:
            aside.unlink()


def make_ray_environment(home: Path) -> dict[str, str]:
    """Make the variables with which the local Ray starts, and a process of this machine connects to it."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home / TOKEN), **ON_LOOPBACK}


def is_keeper_alive(home: Path) -> bool:
    """Return whether a keeper holds its lock."""
    return (home / LOCK).exists() and is_locked(home / LOCK)
