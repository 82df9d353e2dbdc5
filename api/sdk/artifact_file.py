"""Artifacts on the client's side: what there is, and the file that a download ends in."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict


class Artifact(BaseModel):
    """A file that a job has left.

    Attributes:
        name: to ask for it by.
        media_type: of its content.
        description: in words.
        bytes: its size; None for one that is put together when asked for.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    media_type: str = "application/octet-stream"
    description: str = ""
    bytes: int | None = None


def target(name: str, path: str | Path | None) -> Path:
    """Give the file that an artifact goes to.

    Args:
        name: of the artifact.
        path: a file, a folder that is there, or None for the working folder.
    """
    wanted = Path() if path is None else Path(path)
    return wanted / Path(name).name if wanted.is_dir() else wanted


@contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its place when it is whole, and leaves nothing behind when it is not.

    Its name until then is its own: of two downloads to one place, each is whole, and the later one stays.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
