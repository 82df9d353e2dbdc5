"""Files that are replaced in one step: a reader never sees half a file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_aside(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; rename it to `path` at the end, or delete it after an error.

    Each writer has a temporary file of its own. If two write one path, the later one stays.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
