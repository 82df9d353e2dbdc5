"""Jobs side by side: groups of seeds, means, paired differences and curves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import FiniteFloat

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from api.comparison.curves import Along
from api.comparison.records import LAST, Comparison
from api.reports.comparison_tables import PaperFormat, render_table
from api.server.dependencies import StoreOf
from api.server.errors import describe_problems
from api.server.routes.curves import Id, Metric
from api.server.routes.jobs import Label, read_all_rounds
from fedsim.errors import FieldError, RequestError
from jobs.store.job_store import JobStore
from jobs.store.records import Job

router = APIRouter(tags=["jobs"])

MOST_JOBS = 500

TABLE_TYPES = {
    "text/csv": PaperFormat.CSV,
    "text/markdown": PaperFormat.MARKDOWN,
    "application/x-latex": PaperFormat.LATEX,
}
"""The format of the table for each media type of `Accept`."""

AS_TABLE: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in TABLE_TYPES}}
}


@router.get("/comparison", response_model=Comparison, responses=describe_problems(404, 422, also=AS_TABLE))
def compare_jobs(
    request: Request,
    store: StoreOf,
    job: Annotated[list[Id] | None, Query(max_length=MOST_JOBS, description="Ids of jobs.")] = None,
    label: Annotated[
        list[Label] | None,
        Query(max_length=32, description="Also all jobs with all of these labels: `name` or `name=value`."),
    ] = None,
    metric: Annotated[
        Metric | None, Query(description="A metric of the round records. Default: the main metric.")
    ] = None,
    target: Annotated[
        FiniteFloat | None, Query(description="The target value. Default: the worst final value.")
    ] = None,
    last: Annotated[
        int, Query(ge=1, le=1_000_000, description="Scores in the mean of the last rounds.")
    ] = LAST,
    against: Annotated[
        str | None,
        Query(max_length=300, description="The baseline: a group or a job. Default: the first group."),
    ] = None,
    together: Annotated[bool, Query(description="False: one group for each job.")] = True,
    along: Annotated[Along, Query(description="The horizontal axis of the curves.")] = "rounds",
) -> Comparison | Response:
    """Compare jobs. With `Accept: text/csv`, `text/markdown` or `application/x-latex`: the table alone."""
    runs = [
        ComparedRun.from_job(each, list(read_all_rounds(store, each.id, 0)))
        for each in _find_jobs(store, job or [], label or [])
    ]
    found = compare_runs(runs, metric, target, last=last, against=against, together=together, along=along)
    accepted = request.headers.get("accept", "")
    for media_type, format in TABLE_TYPES.items():
        if media_type in accepted:
            return Response(render_table(found, format), media_type=media_type)
    return found


def _find_jobs(store: JobStore, ids: list[str], labels: list[str]) -> list[Job]:
    """Find the jobs with these ids, then those with all of the labels, the oldest first; each job once.

    Raises:
        JobNotFound: a job with one of the ids does not exist.
        RequestError: there are no jobs to compare, or too many.
    """
    found = {job_id: store.get(job_id) for job_id in ids}
    if labels:
        page = store.list(None, labels, "created_at", MOST_JOBS)
        if page.next_page_token is not None:
            hint = "give another label too"
            raise RequestError([FieldError("label", labels, f"more than {MOST_JOBS} jobs have it", hint)])
        found |= {job.id: job for job in page.jobs if job.id not in found}
    if not found:
        value, message = (labels, "no job has it") if labels else (ids, "no job is given")
        hint = "give `job=ID` or `label=name=value`, both repeatable"
        raise RequestError([FieldError("label" if labels else "job", value, message, hint)])
    return list(found.values())
