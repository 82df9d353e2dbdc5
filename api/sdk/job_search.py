"""Find a job by its id, or by the beginning of its id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from api.sdk import calls
from api.sdk.transport.connection import Connection
from fedsim.errors import JobNotFound
from jobs.store.records import Job

PAGE = 100
"""Jobs in one answer."""

LABEL_PAGE = 500
"""Jobs in one answer to a question for all jobs with a label."""

WHOLE_ID = re.compile(r"[A-Za-z0-9]{1,64}")
"""A text that may be an id; any other text could change the path of the request."""

BEGINNING = re.compile(r"[0-9a-z]{1,11}")
"""A text that may be the beginning of an id, which has 12 characters."""

MOST_NAMED = 5
"""How many jobs a hint names."""

SUGGESTED_FROM = 200
"""How many of the youngest jobs are searched for a similar id or the same name."""


async def find_job(connection: Connection, text: str) -> Job:
    """Find a job by its id, or by the beginning of its id if only one id begins with this text.

    Raises:
        JobNotFound: no job or several jobs have such an id; the hint names similar ids.
    """
    refusal = JobNotFound(f"no job has the id {text[:80]!r}", "`fedsim list` shows the jobs with their ids")
    if WHOLE_ID.fullmatch(text):
        try:
            return await connection.send(calls.get_job(text))
        except JobNotFound as error:
            refusal = error
    prefix = text.lower()
    found = await _find_by_beginning(connection, prefix) if BEGINNING.fullmatch(prefix) else []
    if len(found) == 1:
        return found[0]
    if found:
        raise _make_ambiguous_error(text, found)
    young = await connection.send(calls.list_jobs(order_by="-created_at", limit=SUGGESTED_FROM))
    raise JobNotFound(refusal.message, _suggest_job(text, young.jobs) or refusal.hint)


async def find_labelled(connection: Connection, label: str | Sequence[str]) -> list[Job]:
    """Find all jobs with a label, `name` or `name=value`, or with all of these labels; the youngest first."""
    jobs: list[Job] = []
    token: str | None = None
    while True:
        call = calls.list_jobs(label=label, order_by="-created_at", limit=LABEL_PAGE, page_token=token)
        page = await connection.send(call)
        jobs += page.jobs
        token = page.next_page_token
        if token is None:
            return jobs


async def _find_by_beginning(connection: Connection, prefix: str) -> list[Job]:
    """Find the jobs whose ids begin with a prefix; stop after a few."""
    found: list[Job] = []
    token: str | None = None
    while True:
        page = await connection.send(calls.list_jobs(limit=PAGE, page_token=token, search=prefix))
        found += [job for job in page.jobs if job.id.startswith(prefix)]
        token = page.next_page_token
        if token is None or len(found) > MOST_NAMED:
            return found


def _make_ambiguous_error(prefix: str, found: list[Job]) -> JobNotFound:
    ids = ", ".join(f"{job.id} ({job.name})" for job in found[:MOST_NAMED])
    which = f"{ids} or others" if len(found) > MOST_NAMED else ids
    return JobNotFound(f"the ids of several jobs begin with {prefix!r}", f"which one: {which}?")


def _suggest_job(text: str, jobs: list[Job]) -> str:
    named = next((job for job in jobs if job.name == text), None)
    if named is not None:
        return f"{text!r} is a name; the youngest job of that name is {named.id}"
    close = difflib.get_close_matches(text.lower(), [job.id for job in jobs], n=1, cutoff=0.75)
    names = {job.id: job.name for job in jobs}
    return f"did you mean {close[0]!r} ({names[close[0]]})?" if close else ""
