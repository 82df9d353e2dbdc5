"""Jobs side by side: groups of seeds, means, paired differences and curves."""

from __future__ import annotations

from io import BytesIO
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import FiniteFloat

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from api.comparison.curves import Along
from api.comparison.records import LAST, Comparison
from api.reports.comparison_tables import PaperFormat, render_table
from api.server.dependencies import ServiceOf
from api.server.errors import describe_problems
from api.server.routes.curves import Id, Metric
from api.server.routes.jobs import Label
from api.server.slow_lookups import Interest
from api.server.stored_rounds import LARGE_PAGE_BYTES, check_record_bytes, read_all_rounds
from fedsim.errors import FieldError, RequestError
from jobs.spec.submission import MAX_LABELS
from jobs.store.job_store import JobStore
from jobs.store.records import Job, RoundRecord

router = APIRouter(tags=["jobs"])

MOST_JOBS = 500

JobIds: TypeAlias = Annotated[list[Id] | None, Query(max_length=MOST_JOBS, description="Ids of jobs.")]
JobLabels: TypeAlias = Annotated[
    list[Label] | None,
    Query(
        max_length=MAX_LABELS, description="Also all jobs with all of these labels: `name` or `name=value`."
    ),
]

TABLE_TYPES = {
    "text/csv": PaperFormat.CSV,
    "text/markdown": PaperFormat.MARKDOWN,
    "application/x-latex": PaperFormat.LATEX,
}
"""The format of the table for each media type of `Accept`."""

PDF = "application/pdf"

AS_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            **{kind: {"schema": {"type": "string"}} for kind in TABLE_TYPES},
            PDF: {"schema": {"type": "string", "format": "binary"}},
        }
    }
}


@router.get(
    "/comparison", response_model=Comparison, responses=describe_problems(404, 422, 503, also=AS_FILE)
)
async def compare_jobs(
    request: Request,
    service: ServiceOf,
    job: JobIds = None,
    label: JobLabels = None,
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
) -> Response:
    """Compare jobs.

    With `Accept: text/csv`, `text/markdown` or `application/x-latex`: the table alone; with
    `application/pdf`: the curves as a figure.
    """
    accepted = request.headers.get("accept", "")
    table = next((kind for kind in TABLE_TYPES if kind in accepted), None)

    # The text is made here, too: it has megabytes, and would keep the event loop busy.
    def compare(interest: Interest) -> Response:
        runs = _read_runs(service.store, job or [], label or [], interest)
        found = compare_runs(runs, metric, target, last=last, against=against, together=together, along=along)
        if PDF in accepted:
            return Response(_draw_curves(found), media_type=PDF)
        if table is None:
            return Response(found.model_dump_json(), media_type="application/json")
        return Response(render_table(found, TABLE_TYPES[table]), media_type=table)

    return await service.round_lookups.run_while_wanted(request.is_disconnected, compare)


def _draw_curves(found: Comparison) -> bytes:
    """Draw the curves of the groups as PDF.

    Raises:
        RequestError: there are no curves.
    """
    from api.reports.comparison_figure import make_comparison_figure
    from api.reports.pictures import draw_figure, save_canvas

    drawn, stream = make_comparison_figure(found), BytesIO()
    if drawn is None:
        hint = "wait for an evaluation, or name another metric"
        raise RequestError([FieldError("metric", found.metric, "no round has a finite value", hint)])
    save_canvas(draw_figure(drawn), stream, "pdf")
    return stream.getvalue()


def _read_runs(store: JobStore, ids: list[str], labels: list[str], interest: Interest) -> list[ComparedRun]:
    """Read the rounds of the jobs.

    Raises:
        JobNotFound, RequestError: as `find_jobs`; RequestError also if the records are too large.
    """
    jobs = find_jobs(store, ids, labels)
    hint = "give fewer jobs, or compare them on your machine: fedsim compare"
    check_record_bytes(store, jobs, "label" if labels else "job", labels or ids, hint, interest)
    return [ComparedRun.from_job(job, _read_records(store, job.id, interest)) for job in jobs]


def _read_records(store: JobStore, job_id: str, interest: Interest) -> list[RoundRecord]:
    """Read the records of a job without the values of its method, which may be many and are not compared."""
    return [
        record.model_copy(update={"method": {}}) for record in read_all_rounds(store, job_id, 0, interest)
    ]


def find_jobs(store: JobStore, ids: list[str], labels: list[str]) -> list[Job]:
    """Find the jobs with these ids, then those with all of the labels, the oldest first; each job once.

    Raises:
        JobNotFound: a job with one of the ids does not exist.
        RequestError: there are no jobs to compare, or too many.
    """
    found = {job_id: store.get(job_id) for job_id in ids}
    if labels:
        page = store.list(None, labels, "created_at", MOST_JOBS, most_bytes=LARGE_PAGE_BYTES)
        if page.next_page_token is not None:
            message = f"more than {MOST_JOBS} jobs have it, or jobs with large specs"
            raise RequestError([FieldError("label", labels, message, "give another label too")])
        found |= {job.id: job for job in page.jobs if job.id not in found}
    if not found:
        value, message = (labels, "no job has it") if labels else (ids, "no job is given")
        hint = "give `job=ID` or `label=name=value`, both repeatable"
        raise RequestError([FieldError("label" if labels else "job", value, message, hint)])
    return list(found.values())
