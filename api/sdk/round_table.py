"""Round records as a table: the CSV of REST, the SDK and the command line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.store.records import RoundRecord

RECORD_FIELDS = tuple(RoundRecord.model_fields)
"""The parts of a record, in the order of a table's columns."""


def flatten_record(record: RoundRecord) -> dict[str, Any]:
    """Make one flat row: `metrics.global_accuracy`, `bytes.up`, ...; lists of clients become `3 14`."""
    data = record.model_dump(mode="json")
    data["failed"] = " ".join(str(client) for client in record.failed)
    if record.clock is not None:
        data["clock"]["left_out"] = " ".join(map(str, record.clock.left_out))
    if record.end is None:
        del data["end"]
    return dict(_flatten(data))


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def list_columns(records: Iterable[RoundRecord]) -> list[str]:
    """List the columns of a table: every key of every record, in the order of `RECORD_FIELDS`.

    Without records it is `round` alone.
    """
    names = dict.fromkeys(name for record in records for name in flatten_record(record))
    return sorted(names or ["round"], key=lambda name: RECORD_FIELDS.index(name.partition(".")[0]))


def format_csv(columns: list[str], records: Iterable[RoundRecord]) -> Iterator[str]:
    """Yield the header line, then one line for each record; a missing value stays empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    yield _drain(buffer)
    for record in records:
        writer.writerow(flatten_record(record))
        yield _drain(buffer)


def _drain(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text
