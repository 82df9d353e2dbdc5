"""Pages of jobs by keyset: a token names the last job of a page; new jobs never shift the next page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    RowMapping,
    Select,
    String,
    and_,
    func,
    literal,
    or_,
    select,
    tuple_,
)

from fedsim.errors import BadPageToken, FieldError, RequestError
from jobs.spec.submission import MAX_LABELS
from jobs.store.queue_order import QUEUE_KEYS, SortKey
from jobs.store.rows import make_storable
from jobs.store.states import JobState
from jobs.store.tables import UtcTime, jobs, labels

MAX_LIMIT = 1000
MAX_DIGITS = 9


def reverse_keys(keys: Sequence[SortKey]) -> tuple[SortKey, ...]:
    """Return the keys of the reverse order."""
    return tuple(SortKey(key.column, not key.descending) for key in keys)


ORDERS = {
    "created_at": (SortKey(jobs.c.created_at, False), SortKey(jobs.c.id, False)),
    "name": (SortKey(jobs.c.name, False), SortKey(jobs.c.id, False)),
    "priority": reverse_keys(QUEUE_KEYS),
    "state": (SortKey(jobs.c.state, False), SortKey(jobs.c.id, False)),
}
"""The orders of a list of jobs; a leading minus reverses an order, and `-priority` is the order of the queue.
The last key of each order differs for all jobs."""


class JobQuery(NamedTuple):
    """The filters, the order and the page size of a list of jobs. A job must pass all filters.

    Attributes:
        states: of which the job has one; () for all.
        labels: each `key` or `key=value`; the job has all of them.
        algorithm: the name of the job's algorithm.
        search: a part of the job's name, id or algorithm, in upper or lower case.
        order_by: one of `ORDERS`, with a leading minus for the largest first.
        limit: jobs on a page.
    """

    states: tuple[str, ...]
    labels: tuple[str, ...]
    algorithm: str | None
    search: str | None
    order_by: str
    limit: int

    @property
    def keys(self) -> tuple[SortKey, ...]:
        """Return the sort keys of the list."""
        keys = ORDERS[self.order_by.removeprefix("-")]
        return reverse_keys(keys) if self.order_by.startswith("-") else keys

    def build_statement(self, page_token: str | None) -> Select[Any]:
        """Build the query for a page and one more row, which shows whether another page follows.

        An index yields the ids of the page; whole rows with their specs are read for these ids alone.
        """
        found = select(jobs.c.id).where(*self._build_filters(self.states)).limit(self.limit + 1)
        if page_token is not None:
            found = found.where(_build_after_filter(self.keys, self._read_page_token(page_token)))
        order = [key.build_expression() for key in self.keys]
        return select(jobs).where(jobs.c.id.in_(found.order_by(*order))).order_by(*order)

    def build_count_statement(self) -> Select[Any]:
        """Build the query for the number of jobs in each state: of all jobs that pass the other filters."""
        return select(jobs.c.state, func.count()).where(*self._build_filters()).group_by(jobs.c.state)

    def make_page_token(self, last: RowMapping) -> str:
        """Make the token of the page that follows this row."""
        place = [last[key.column.name] for key in self.keys]
        values = [value.isoformat() if isinstance(value, datetime) else value for value in place]
        text = json.dumps([self._hash_filters(), *values], ensure_ascii=False)
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _build_filters(self, states: Collection[str] = ()) -> Iterator[ColumnElement[bool]]:
        if states:
            yield jobs.c.state.in_(states)
        for label in self.labels:
            yield jobs.c.id.in_(_select_labelled(label))
        if self.algorithm:
            yield jobs.c.algorithm == self.algorithm
        if self.search:
            columns = (jobs.c.name, jobs.c.id, jobs.c.algorithm)
            yield or_(*(column.icontains(self.search, autoescape=True) for column in columns))

    def _hash_filters(self) -> str:
        """Return a hash of the filters and the order, to which a token belongs."""
        filters = [sorted(self.states), sorted(self.labels), self.algorithm, self.search]
        return hashlib.sha256(json.dumps([*filters, self.order_by]).encode()).hexdigest()[:12]

    def _read_page_token(self, token: str) -> list[Any]:
        """Return the sort values of a token; check every value, because a caller may forge a token."""
        try:
            text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
            fingerprint, *values = json.loads(text)
            place = [_parse_value(key.column, value) for key, value in zip(self.keys, values, strict=True)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            fingerprint, place = None, []
        if fingerprint != self._hash_filters():
            hint = "take next_page_token of the page before, with the same filters and order"
            raise BadPageToken(f"{token[:80]!r} is not a page token of this list", hint)
        return place


def make_job_query(
    state: JobState | Collection[JobState] | None,
    label: str | Collection[str] | None,
    order_by: str,
    limit: int,
    algorithm: str | None,
    search: str | None,
) -> JobQuery:
    """Check the arguments of a list, and make its query.

    Args:
        state: one state, several, or None for all.
        label: `key` or `key=value`, one or several; a job must have all of them.
        order_by: one of `ORDERS`, with a leading minus for the largest first.
        limit: jobs on a page, from 1 to 1000.
        algorithm: the name of an algorithm.
        search: a part of a job's name, id or algorithm, in upper or lower case.

    Raises:
        RequestError: with path `order_by`, `limit`, `label`, `algorithm` or `search`.
    """
    states = (state,) if isinstance(state, str) else tuple(state or ())
    asked = (label,) if isinstance(label, str) else tuple(label or ())
    texts = [*(("label", each) for each in asked), ("algorithm", algorithm), ("search", search)]
    errors = list(_find_faults(order_by, limit, len(asked)))
    for path, text in texts:
        if text is not None and text != make_storable(text):
            errors.append(
                FieldError(path, make_storable(text)[:200], "is not a text", "use printable characters")
            )
    if errors:
        raise RequestError(errors)
    return JobQuery(tuple(JobState(s).value for s in states), asked, algorithm, search, order_by, limit)


def _find_faults(order_by: str, limit: int, asked: int) -> Iterator[FieldError]:
    if order_by.removeprefix("-") not in ORDERS:
        yield FieldError("order_by", order_by[:200], "is not an order", f"one of {', '.join(ORDERS)}")
    if not 1 <= limit <= MAX_LIMIT:
        yield FieldError("limit", limit, "is out of range", f"allowed: 1 to {MAX_LIMIT}")
    if asked > MAX_LABELS:
        yield FieldError("label", asked, "are too many", f"at most {MAX_LABELS} labels")


def _build_after_filter(keys: Sequence[SortKey], place: Sequence[Any]) -> ColumnElement[bool]:
    """Build the filter for the rows that come after a place in the order of the keys."""
    # One comparison of row values instead of several of columns: a database can use an index for it. A row
    # value has one direction, so it takes the leading keys of one direction; the others break its ties.
    leading = list(takewhile(lambda key: key.descending == keys[0].descending, keys))
    here = tuple_(*(key.column for key in leading))
    last = tuple_(*(literal(value, key.column.type) for key, value in zip(leading, place, strict=False)))
    after = here < last if keys[0].descending else here > last
    if len(leading) == len(keys):
        return after
    tied = [key.column == value for key, value in zip(leading, place, strict=False)]
    return or_(after, and_(*tied, _build_after_filter(keys[len(leading) :], place[len(leading) :])))


def _parse_value(column: Column[Any], value: Any) -> Any:
    """Parse a value of a page token; the type of the column says how."""
    if isinstance(column.type, UtcTime):
        return datetime.fromisoformat(_check_text(value)).astimezone(UTC)
    if isinstance(column.type, String):
        return _check_text(value)
    if not isinstance(column.type, Integer):
        raise NotImplementedError(f"a page token cannot hold {column}")
    if type(value) is not int or len(str(abs(value))) > MAX_DIGITS:
        raise ValueError("no number")
    return value


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or value != make_storable(value):
        raise ValueError("no text")
    return value


def _select_labelled(label: str) -> Select[Any]:
    key, equals, value = label.partition("=")
    query = select(labels.c.job_id).where(labels.c.key == key)
    return query.where(labels.c.value == value) if equals else query
