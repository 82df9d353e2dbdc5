"""Files of JSON lines that only grow, and that a crash may cut off anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> Iterator[Any]:
    """Yield the decoded lines of a file; none if the file is missing. A line that was cut off is left out."""
    # Texts may have other characters that end a line, such as U+2028; `write_line` ends it with \n alone.
    for line in file.read_bytes().split(b"\n") if file.is_file() else []:
        # A line that was cut off inside a character is not UTF-8.
        with suppress(ValueError):
            yield json.loads(line)


def write_line(file: Path, line: str) -> None:
    """Append a line to a file and wait until it is on the disk; first end a last line that was cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as opened:
        if opened.tell():
            opened.seek(-1, os.SEEK_END)
            if opened.read(1) != b"\n":
                opened.write(b"\n")
        opened.write(f"{line}\n".encode())
        opened.flush()
        os.fsync(opened.fileno())
