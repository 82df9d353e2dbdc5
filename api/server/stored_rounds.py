"""Round records of the store, read for one request: how large they may be, and page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from api.server.slow_lookups import Interest
from fedsim.errors import FieldError, RequestError
from jobs.store.job_store import JobStore
from jobs.store.records import Job, RoundRecord

PAGE = 500
"""Rounds that are read at once."""

SMALL_PAGE_BYTES = 2**20
LARGE_PAGE_BYTES = 2**23
"""Bytes of the specs or records on a page; it takes about ten times as much memory while it is made."""

MOST_RECORD_BYTES = 60_000_000
"""Bytes of the records that one request has in memory. They take seconds, and eight times as much memory."""

INTEREST = Interest()
"""The interest in answers that are sent while they are read: they end with their connection."""


def check_record_bytes(
    store: JobStore,
    jobs: Sequence[Job],
    field: str,
    value: Any,
    hint: str,
    interest: Interest,
    most: int | None = None,
) -> None:
    """Check that all records of the jobs together can be read for one request.

    Args:
        store: of the jobs.
        jobs: whose records are read.
        field: of the request that named the jobs.
        value: of the field.
        hint: the way out, if the records are too large.
        interest: in the answer; counting bytes takes part of a second.
        most: bytes; `MOST_RECORD_BYTES` if None.

    Raises:
        RequestError: they are too large.
        ServiceBusy: nobody is interested any more.
    """
    size, most = 0, MOST_RECORD_BYTES if most is None else most
    for job in jobs:
        interest.check()
        size += store.count_record_bytes(job.id)
        if size > most:
            rounds = sum(job.rounds_done for job in jobs)
            message = (
                f"has more than {most / 1e6:,.1f} MB of records, which is the most here ({rounds:,} rounds)"
            )
            raise RequestError([FieldError(field, value, message, hint)])


def read_all_rounds(
    store: JobStore, job_id: str, after: int, interest: Interest = INTEREST
) -> Iterator[RoundRecord]:
    """Yield the rounds after `after`, reading page by page.

    Raises:
        ServiceBusy: nobody is interested any more.
    """
    interest.check()
    while records := store.rounds(job_id, after, PAGE, SMALL_PAGE_BYTES):
        yield from records
        interest.check()
        after = records[-1].round
