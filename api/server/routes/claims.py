"""The verdicts on the claims of a paper, by the jobs that are runs of one of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from pydantic import Field

from api.server.dependencies import ServiceOf
from api.server.errors import describe_problems
from api.server.routes.comparison import JobIds, JobLabels, find_jobs
from api.server.slow_lookups import Interest
from api.server.stored_rounds import check_record_bytes, read_all_rounds
from fedsim.errors import FedsimError, FieldError, RequestError, SettingsError, SpecError
from jobs.grid.journal import Entry
from jobs.grid.one_run import make_entry
from jobs.grid.table import PRESET, TABLE, Table, list_tables, load_table
from jobs.grid.verdicts import Verdict, judge_claims
from jobs.spec import parse_spec
from jobs.spec.sweep import Member
from jobs.store.job_store import JobStore
from jobs.store.records import FrozenRecord, Job
from jobs.store.states import JobState

router = APIRouter(tags=["jobs"])

HINT = "give the jobs of one table at one scale: label=table=NAME, and label=preset=NAME for the scale"


class JudgedClaim(FrozenRecord):
    """The verdict on one claim in one cell of its table."""

    claim: str = Field(description="Id of the claim.")
    sentence: str = Field(description="What the paper claims.")
    place: str = Field(description="In the paper; empty for a claim of this project.")
    paper: str = Field(description="The paper's own figures; empty if it has none.")
    cells: str = Field(description="What is compared, such as `KDIA against FedAvg, Dir(0.1)`.")
    verdict: str = Field(description="Such as `held`, `reversed` or `undecided`.")
    remark: str = Field(description="The reason of the verdict, or how many seeds decide it; may be empty.")
    figures: str = Field(description="The means of both sides; empty if they say little.")
    difference: str = Field(description="Paired by seed, with its 95 % interval; empty without runs.")
    p: str = Field(description="Adjusted by Holm's method over the table; empty without an interval.")


class JudgedTable(FrozenRecord):
    """The claims of a table, judged by finished jobs."""

    table: str = Field(description="Name of the table.")
    title: str = Field(description="What it shows.")
    paper: str = Field(description="Short name of the paper's page.")
    finished: int = Field(description="Jobs that count: one for each cell and seed, succeeded and scored.")
    runs: int = Field(description="Cells of the table times the seeds of the jobs.")
    command: str = Field(description="The command that makes the runs.")
    claims: list[JudgedClaim]


@router.get("/claims", response_model=JudgedTable, responses=describe_problems(404, 422, 503))
async def judge_jobs(
    request: Request,
    service: ServiceOf,
    job: JobIds = None,
    label: JobLabels = None,
) -> Response:
    """Judge the claims of a result table by jobs that `fedsim reproduce TABLE --on service` has made."""

    def judge(interest: Interest) -> Response:
        store, ids, labels = service.store, job or [], label or []
        asked = ("label", labels) if labels else ("job", ids)
        runs = find_jobs(store, ids, labels)
        table = _find_table(runs, *asked)
        ended = sorted(
            (each for each in runs if each.state is JobState.SUCCEEDED), key=lambda each: each.created_at
        )
        check_record_bytes(store, ended, *asked, "give the jobs of fewer seeds", interest)
        found = _judge(table, ended, store, interest)
        return Response(found.model_dump_json(), media_type="application/json")

    return await service.round_lookups.run_while_wanted(request.is_disconnected, judge)


def _find_table(jobs: list[Job], field: str, value: list[str]) -> Table:
    """Return the table of the jobs, at their scale and with their seeds.

    Raises:
        RequestError: they are no runs of one built-in table, at one scale.
    """
    names, scales = ({job.labels.get(key, "") for job in jobs} for key in (TABLE, PRESET))
    if len(names) > 1 or not names <= {*list_tables()}:
        raise RequestError([FieldError(field, value, "the jobs are no runs of one built-in table", HINT)])
    if len(scales) > 1:
        found = ", ".join(sorted(scales))
        raise RequestError([FieldError(field, value, f"the jobs have several scales: {found}", HINT)])
    table, scale = load_table(names.pop()), scales.pop()
    try:
        scaled = table if scale == table.preset else table.at_scale(scale)
    except SettingsError as error:
        raise RequestError([FieldError(field, value, str(error), HINT)]) from None
    seeds = {int(job.spec["seed"]) for job in jobs if "seed" in job.labels}
    if not seeds:
        raise RequestError([FieldError(field, value, "no job has the label seed, as a run of a table", HINT)])
    if seeds == {*scaled.seeds}:
        return scaled
    chosen = scaled.with_seeds(len(seeds))
    if seeds == {*chosen.seeds}:
        return chosen
    return scaled.model_copy(update={"seeds": tuple(sorted(seeds))})


def _judge(table: Table, jobs: list[Job], store: JobStore, interest: Interest) -> JudgedTable:
    members = {member.spec_hash: member for member in table.runs()}
    finished = _read_runs(table, members, jobs, store, interest)
    return JudgedTable(
        table=table.name,
        title=table.title,
        paper=table.page,
        finished=len(finished),
        runs=len(members),
        command=f"{table.command} --on service",
        claims=[_describe(verdict) for verdict in judge_claims(table, finished)],
    )


def _read_runs(
    table: Table, members: Mapping[str, Member], jobs: list[Job], store: JobStore, interest: Interest
) -> dict[str, Entry]:
    """Read the jobs whose specs are those of the table, by the hash of the spec; of two the later counts."""
    found, sweep = dict[str, Entry](), table.sweep
    for job in jobs:
        try:
            key = sweep.hash_spec(parse_spec(job.spec))
        except SpecError:
            continue  # a spec of another version
        if (member := members.get(key)) is None:
            continue  # such as a clone with another rate, which has the labels of the run
        records = list(read_all_rounds(store, job.id, 0, interest))
        with suppress(FedsimError):  # it was never scored by the metric of the table
            found[key] = make_entry(member, table, records)
    return found


def _describe(verdict: Verdict) -> JudgedClaim:
    remark = verdict.describe().removeprefix(verdict.outcome).strip()
    return JudgedClaim(
        claim=verdict.claim.id,
        sentence=verdict.claim.sentence,
        place=verdict.claim.place,
        paper=verdict.claim.figure,
        cells=verdict.describe_cell(),
        verdict=str(verdict.outcome),
        remark=remark.removeprefix("(").removesuffix(")"),
        figures=verdict.format_figures(),
        difference=verdict.format_difference(),
        p=verdict.format_p(),
    )
