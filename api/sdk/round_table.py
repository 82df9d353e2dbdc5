"""Round records as a table: one flat row each, and the same CSV from REST, the SDK and the command line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.store.records import RoundRecord

FIRST = tuple(RoundRecord.model_fields)
"""The parts of a record, in the order of a table's columns."""


def row(record: RoundRecord) -> dict[str, Any]:
    """Flatten a record: `metrics.global_accuracy`, `bytes.up`, ...; clients that failed become `3 14`."""
    data = record.model_dump(mode="json")
    data["failed"] = " ".join(str(client) for client in record.failed)
    return dict(_flat(data))


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def columns(records: Iterable[RoundRecord]) -> list[str]:
    """Name the columns of a table of these records: every key of every record, in the order of `FIRST`."""
    names = dict.fromkeys(name for record in records for name in row(record))
    return sorted(names, key=lambda name: FIRST.index(name.partition(".")[0]))


def csv_lines(names: list[str], records: Iterable[RoundRecord]) -> Iterator[str]:
    """Write the head, then a line for each record. What a record has not got stays empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    yield _drain(buffer)
    for record in records:
        writer.writerow(row(record))
        yield _drain(buffer)


def _drain(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text
