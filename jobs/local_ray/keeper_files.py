"""What the local Ray's keeper and those who use it tell each other: a few files in fedsim's home.

`ray.lock` is held by the keeper as long as it lives, so that nobody mistakes another process with the same
number for it. `ray.json` holds the addresses once Ray answers. `ray.token` holds the token that Ray asks for.
`api.alive` is touched by those who still need the local Ray.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK, ADDRESSES, TOKEN, ALIVE, LOG = "ray.lock", "ray.json", "ray.token", "api.alive", "ray.log"


@dataclass(frozen=True)
class Addresses:
    """What `ray.json` says.

    Attributes:
        pid: the keeper's process.
        temporary: Ray's directory for sockets and logs.
        dashboard: URL of Ray's dashboard and Jobs API.
        gcs: `host:port` for `ray.init`; empty until Ray answers.
    """

    pid: int
    temporary: str
    dashboard: str
    gcs: str = ""


def read_addresses(home: Path) -> Addresses | None:
    """The addresses that were written last; None where there are none, or none that make sense."""
    try:
        return Addresses(**json.loads((home / ADDRESSES).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_addresses(home: Path, addresses: Addresses) -> None:
    """Replace `ray.json` in one step, so that a reader finds the old one or the new one, never a half."""
    aside = home / f"{ADDRESSES}.{os.getpid()}"
    aside.write_text(json.dumps(asdict(addresses)), "utf-8")
    aside.replace(home / ADDRESSES)


def read_or_make_token(home: Path) -> str:
    """The token of the local Ray, made on first use, readable by its owner only."""
    path = home / TOKEN
    with contextlib.suppress(FileExistsError):
        aside = home / f"{TOKEN}.{secrets.token_hex(4)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        try:
            # A link fails where the token is there already: of two first users one makes it, both read it.
            os.link(aside, path)
        finally:
            aside.unlink()
    return path.read_text("ascii").strip()


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file; yields whether it was got. The kernel frees it with the process."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def is_keeper_alive(home: Path) -> bool:
    """Whether a keeper holds its lock."""
    if not (home / LOCK).exists():
        return False
    with lock_file(home / LOCK, wait=False) as got:
        return not got
