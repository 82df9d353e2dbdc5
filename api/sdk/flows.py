"""What takes more than one call, written once for the client that blocks and the one that does not.

A flow yields calls, is sent their answers (or thrown their refusals), and returns its result. It may yield a
number too: seconds to wait. So it does no input or output itself, and each client drives it in its own way.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

from api.reports.comparison import ComparedRun, Comparison, compare_runs
from api.sdk import calls, following
from api.sdk.calls import Call
from api.sdk.specs import Draft
from fedsim.errors import FedsimError, FieldError, JobNotFound, ServiceError, SpecError
from jobs.store.records import Job, JobPage, RoundRecord
from jobs.store.states import FINAL

T = TypeVar("T")

Flow = Generator[Call[Any] | float, Any, T]

PAGE = 100
"""Jobs asked for at once."""

POSSIBLE = re.compile(r"[A-Za-z0-9]{1,64}")
"""What may be an id; anything else need not be asked for, and must not become another path."""

AGAIN = 1.0
"""Seconds before a service that does not answer is asked again by whoever waits for a job."""

BEGINNING = re.compile(r"[0-9a-z]{1,11}")
"""What may be the beginning of an id, which has 12 characters."""

NAMED = 5
"""How many jobs a hint names."""

LOOKED_THROUGH = 200
"""Jobs among which a name or id that is nearly right is looked for: the youngest, one page of them."""


def page_size(wanted: int | None) -> int:
    """Give how many jobs to ask for at once, where so many (None: all) are still wanted."""
    return PAGE if wanted is None else min(wanted, PAGE)


def whole_faults(draft: Draft) -> Flow[Mapping[str, Any]]:
    """Give a spec's data, or all that is wrong with it: of its shape, and of the names in it.

    Raises:
        SpecError: holds every fault; where the service does not say, those that were found without it.
    """
    if draft.fault is None:
        return draft.data
    try:
        found: list[FieldError] = yield calls.check(draft.data)
    except FedsimError:
        raise draft.fault from None
    if not found:
        return draft.data
    named = {fault.path for fault in found}
    raise SpecError([*found, *(fault for fault in draft.fault.errors if fault.path not in named)])


def find_job(text: str) -> Flow[Job]:
    """Find a job by its id, or by the beginning of its id where no other job's begins so.

    Raises:
        JobNotFound: there is none, or more than one; the hint has ids that are nearly right.
    """
    refusal = JobNotFound(f"no job has the id {text[:80]!r}", "`fedsim list` shows the jobs with their ids")
    if POSSIBLE.fullmatch(text):
        try:
            job: Job = yield calls.get_job(text)
            return job
        except JobNotFound as error:
            refusal = error
    found = (yield from _beginning_with(text.lower())) if BEGINNING.fullmatch(text.lower()) else []
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(text, found)
    young: JobPage = yield calls.list_jobs(order_by="-created_at", limit=LOOKED_THROUGH)
    raise JobNotFound(refusal.message, _did_you_mean(text, young.jobs) or refusal.hint)


def _beginning_with(prefix: str) -> Flow[list[Job]]:
    """The jobs whose ids begin so, or the first few of them where they are many."""
    found: list[Job] = []
    token: str | None = None
    while True:
        page: JobPage = yield calls.list_jobs(limit=PAGE, page_token=token, search=prefix)
        found += [job for job in page.jobs if job.id.startswith(prefix)]
        token = page.next_page_token
        if token is None or len(found) > NAMED:
            return found


def _ambiguous(prefix: str, found: list[Job]) -> JobNotFound:
    ids = ", ".join(f"{job.id} ({job.name})" for job in found[:NAMED])
    which = f"{ids} or others" if len(found) > NAMED else ids
    return JobNotFound(f"the ids of several jobs begin with {prefix!r}", f"which one: {which}?")


def _did_you_mean(text: str, jobs: list[Job]) -> str:
    named = next((job for job in jobs if job.name == text), None)
    if named is not None:
        return f"{text!r} is a name; the youngest job of that name is {named.id}"
    close = difflib.get_close_matches(text.lower(), [job.id for job in jobs], n=1, cutoff=0.75)
    names = {job.id: job.name for job in jobs}
    return f"did you mean {close[0]!r} ({names[close[0]]})?" if close else ""


def all_rounds(job_id: str, after: int) -> Flow[list[RoundRecord]]:
    """Read the records of all rounds above `after`, page by page."""
    records: list[RoundRecord] = []
    position: int | None = after
    while position is not None:
        page, position = yield calls.rounds(job_id, position)
        records += page
    return records


def compare_jobs(jobs: Iterable[str], metric: str, target: float | None) -> Flow[Comparison]:
    """Read the records of jobs, and hold them against one target."""
    runs: list[ComparedRun] = []
    for each in jobs:
        job = yield from find_job(each)
        runs.append(ComparedRun(job.id, job.name, (yield from all_rounds(job.id, 0))))
    return compare_runs(runs, metric, target)


def patiently(make: Callable[[], Flow[T]], end: float | None) -> Flow[T]:
    """Run a flow, and again while nobody answers: for a minute, as a watcher does.

    Args:
        make: makes the flow.
        end: the moment after which there is no waiting, on the monotonic clock; None for no such moment.
    """
    lost_at: float | None = None
    while True:
        try:
            return (yield from make())
        except ServiceError as error:
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            over = now - lost_at > following.PATIENCE or (end is not None and now >= end)
            if over or not following.passes(error):
                raise
        yield AGAIN


def _get(job_id: str) -> Flow[Job]:
    job: Job = yield calls.get_job(job_id)
    return job


def standing(job_id: str) -> Flow[Job]:
    """Ask how a job stands, and again while nobody answers, as after its last event."""
    return (yield from patiently(lambda: _get(job_id), None))


def wait_for(job_id: str, timeout: float | None) -> Flow[Job]:
    """Wait until a job has ended.

    Raises:
        TimeoutError: it has not, after `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    pause = 0.1
    while True:
        job = yield from patiently(lambda: _get(job_id), end)
        if job.state in FINAL:
            return job
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"job {job_id} is {job.state} after {timeout:g} s")
        yield pause if end is None else max(0.0, min(pause, end - time.monotonic()))
        pause = min(1.0, pause * 1.5)
