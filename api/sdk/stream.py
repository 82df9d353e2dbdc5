"""Reading Server-Sent Events, on the client's side of the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One event as it came: its id, its type and its decoded data."""

    id: int
    type: str
    data: dict[str, Any]


class Assembler:
    """Puts the lines of a stream together to events. Comments, and an event cut off, are left out."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def take(self, line: str) -> Message | None:
        """Take one line, without its end; gives the event that it completes, if it does."""
        if line.startswith(":"):
            return None
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            again = name == "data" and name in self._fields
            self._fields[name] = f"{self._fields[name]}\n{value}" if again else value
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return Message(int(fields.get("id", 0)), fields.get("event", "message"), json.loads(fields["data"]))


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """Put the lines of a whole stream together to events.

    Args:
        lines: the lines of the stream, without their ends.
    """
    assembler = Assembler()
    for line in lines:
        message = assembler.take(line)
        if message is not None:
            yield message
