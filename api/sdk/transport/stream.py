"""Read Server-Sent Events on the client's side."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One event of a job.

    Attributes:
        id: of the event; 0 if it has none.
        type: such as `round`, `state` or `warning`.
        data: the decoded JSON.
    """

    id: int
    type: str
    data: dict[str, Any]


class Assembler:
    """Assembles events from the lines of a stream; ignores comments and an incomplete last event."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def add_line(self, line: str) -> Message | None:
        """Add one line without its end; return the event if the line completes one."""
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
