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


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """Put the lines of a stream together to events. Comments, and an event cut off at the end, are left out.

    Args:
        lines: the lines of the stream, without their ends.
    """
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        elif "data" in fields:
            yield Message(
                int(fields.get("id", 0)), fields.get("event", "message"), json.loads(fields["data"])
            )
            fields = {}
