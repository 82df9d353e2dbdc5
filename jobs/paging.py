"""Pages of jobs by keyset: a token names the last job of a page, so new jobs never shift the next one."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, RowMapping, Select, and_, or_, select

from fedsim.errors import BadPageToken, FieldError, SpecError
from jobs.states import JobState
from jobs.tables import jobs, labels

MAX_LIMIT = 1000

ORDERS = {
    "created_at": jobs.c.created_at,
    "name": jobs.c.name,
    "priority": jobs.c.priority,
    "state": jobs.c.state,
}
"""What a list of jobs may be ordered by; a leading minus turns the order round. Ties go by id."""


class JobQuery(NamedTuple):
    """A list of jobs: which ones, in which order, how many at a time."""

    states: tuple[str, ...]
    label: str | None
    order_by: str
    limit: int

    @property
    def column(self) -> Column[Any]:
        """The column of the order."""
        return ORDERS[self.order_by.removeprefix("-")]

    @property
    def descending(self) -> bool:
        """Whether the largest comes first."""
        return self.order_by.startswith("-")

    def statement(self, page_token: str | None) -> Select[Any]:
        """One row more than the page holds, so that the caller sees whether another page follows."""
        query = select(jobs).limit(self.limit + 1)
        if self.states:
            query = query.where(jobs.c.state.in_(self.states))
        if self.label:
            query = query.where(jobs.c.id.in_(_labelled(self.label)))
        if page_token is not None:
            query = query.where(self._beyond(*self._read(page_token)))
        keys = (self.column, jobs.c.id)
        return query.order_by(*(key.desc() if self.descending else key for key in keys))

    def token(self, last: RowMapping) -> str:
        """The token of the page that follows this row."""
        value = last[self.column.name]
        value = value.isoformat() if isinstance(value, datetime) else value
        text = json.dumps([self._fingerprint(), value, last["id"]])
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _beyond(self, value: Any, job_id: str) -> ColumnElement[bool]:
        column, key = self.column, jobs.c.id
        if self.descending:
            return or_(column < value, and_(column == value, key < job_id))
        return or_(column > value, and_(column == value, key > job_id))

    def _fingerprint(self) -> str:
        """What a token belongs to: the same filters and the same order."""
        text = json.dumps([sorted(self.states), self.label, self.order_by])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _read(self, token: str) -> tuple[Any, str]:
        try:
            text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
            fingerprint, value, job_id = json.loads(text)
            value = datetime.fromisoformat(value) if self.column is jobs.c.created_at else value
            kind = int if self.column is jobs.c.priority else (str, datetime)
            known = fingerprint == self._fingerprint() and isinstance(value, kind)
        except (ValueError, TypeError):
            known = False
        if not known or not isinstance(job_id, str):
            hint = "take next_page_token of the page before, with the same filters and order"
            raise BadPageToken(f"{token[:80]!r} is not a page token of this list", hint)
        return value, job_id


def job_query(
    state: JobState | Collection[JobState] | None, label: str | None, order_by: str, limit: int
) -> JobQuery:
    """A checked query.

    Args:
        state: one state, several, or None for all.
        label: `key` or `key=value`.
        order_by: one of `ORDERS`, with a leading minus for the largest first.
        limit: jobs of a page, from 1 to 1000.

    Raises:
        SpecError: with path `order_by` or `limit`.
    """
    errors = []
    if order_by.removeprefix("-") not in ORDERS:
        errors.append(
            FieldError("order_by", order_by[:200], "is not an order", f"one of {', '.join(ORDERS)}")
        )
    if not 1 <= limit <= MAX_LIMIT:
        errors.append(FieldError("limit", limit, "is out of range", f"allowed: 1 to {MAX_LIMIT}"))
    if errors:
        raise SpecError(errors)
    states = (state,) if isinstance(state, str) else tuple(state or ())
    return JobQuery(tuple(JobState(s).value for s in states), label, order_by, limit)


def _labelled(label: str) -> Select[Any]:
    key, equals, value = label.partition("=")
    query = select(labels.c.job_id).where(labels.c.key == key)
    return query.where(labels.c.value == value) if equals else query
