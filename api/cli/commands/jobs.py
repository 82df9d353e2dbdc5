"""Commands for jobs of a service: `fedsim submit`, `clone`, `list`, `show`, `cancel`, `resume`, `delete`."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.connection import connect
from api.cli.commands.job_output import follow_to_end
from api.cli.commands.options import (
    Format,
    FormatOption,
    JobArgument,
    JobsArgument,
    SelectLabelOption,
    SetOption,
    SpecArgument,
    UrlOption,
    WaitOption,
    parse_labels,
)
from fedsim.errors import SettingsError
from jobs.store.states import FINAL, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from api.sdk.client import FedSimClient
    from api.sdk.job_handle import JobHandle
    from jobs.store.records import Job as Record


NO_JOBS = "no jobs yet; create one with: fedsim submit demo"

MOST_ROUNDS_SUMMED = 5_000
"""`show` sums the cost of jobs with at most so many rounds."""


class Order(StrEnum):
    """Fields that sort a list of jobs."""

    CREATED = "created_at"
    CREATED_LAST = "-created_at"
    NAME = "name"
    NAME_LAST = "-name"
    PRIORITY = "priority"
    PRIORITY_LAST = "-priority"
    STATE = "state"
    STATE_LAST = "-state"


def submit(
    spec: SpecArgument,
    sets: SetOption = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher priority start first.")] = 0,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A label, to find the job later. Repeatable."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Submissions with the same key are one job.")
    ] = None,
    wait: WaitOption = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Submit a job to the service and print its id."""
    from api.cli.display import print_message
    from jobs.spec.spec_text import parse_set_items

    fields = parse_set_items(sets or ())
    labels = parse_labels(label)
    with connect(url) as client:
        handle = client.submit(
            spec, set=fields, priority=priority, labels=labels, idempotency_key=idempotency_key
        )
        if format is Format.TEXT:
            print(handle.id, flush=True)
            if handle.job.message and not wait:
                print_message(f"note: {handle.job.message}")
        _wait_and_exit(handle, wait, format)


def _wait_and_exit(handle: JobHandle, wait: bool, format: Format) -> None:
    """Wait until a job has ended if `wait` is true, print it if the format is JSON, and exit the command."""
    from api.cli.display import print_json

    code = follow_to_end(handle) if wait else 0
    if format is Format.JSON:
        print_json(handle.job.model_dump(mode="json"))
    raise typer.Exit(code)


def list_jobs(
    state: Annotated[
        list[JobState] | None,
        typer.Option(case_sensitive=False, help="Only jobs in this state. Repeatable: in any of them."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs with this label: NAME or NAME=VALUE. Repeatable: with all of them."),
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Only jobs with this algorithm.")] = None,
    search: Annotated[
        str | None, typer.Option(help="Only jobs with this in their name, id or algorithm.")
    ] = None,
    order_by: Annotated[
        Order, typer.Option(help="Sort by this field; with '-', in descending order.")
    ] = Order.CREATED_LAST,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 50,
    every: Annotated[bool, typer.Option("--all", help="List all jobs.")] = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """List the jobs, newest first."""
    from api.cli.display import print_message

    with connect(url) as client:
        # One job more than shown tells whether there are more jobs.
        found = client.jobs(
            state=[each.value for each in state or ()] or None,
            label=label,
            algorithm=algorithm,
            search=search,
            order_by=order_by.value,
            limit=None if every else limit + 1,
        )
        jobs = [handle.job for handle in found]
    shown = jobs if every else jobs[:limit]
    if shown or format is Format.JSON:
        _print_jobs(shown, format)
    else:
        print_message("no job matches" if state or label or algorithm or search else NO_JOBS)
    if len(shown) < len(jobs):
        print_message(f"showing {limit} jobs; use --limit N or --all to see more")


def _print_jobs(jobs: Sequence[Record], format: Format) -> None:
    from api.cli.display import make_jobs_table, print_json, print_table

    if format is Format.JSON:
        print_json([job.model_dump(mode="json") for job in jobs])
    else:
        print_table(make_jobs_table(jobs), unbroken=("id", "state"))


def show(job: JobArgument, format: FormatOption = Format.TEXT, url: UrlOption = None) -> None:
    """Show a job: state, cost of its rounds, latest metrics, spec."""
    from api.cli.display import print_json
    from api.cli.job_details import print_job

    with connect(url) as client:
        handle = client.job(job)
        found = handle.job
        # The report has the sums of a job with more rounds.
        summed = format is Format.TEXT and found.rounds_done <= MOST_ROUNDS_SUMMED
        records = handle.rounds() if summed else ()
    if format is Format.JSON:
        print_json(found.model_dump(mode="json"))
    else:
        print_job(found, records)


def cancel(
    jobs: JobsArgument = None,
    label: SelectLabelOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Cancel jobs of a label without asking.")] = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Cancel jobs. Queued jobs end immediately, running jobs within seconds."""
    from api.cli.display import print_json, print_message

    with connect(url) as client:
        handles = _find(client, jobs, label, set(JobState) - FINAL)
        if label and not yes:
            _confirm(handles, "Cancel", "?", "nothing was cancelled")
        for handle in handles:
            handle.cancel()
            print_message(f"job {handle.id} is {handle.state}")
    if format is Format.JSON:
        found = [handle.job.model_dump(mode="json") for handle in handles]
        print_json(found[0] if len(jobs or ()) == 1 else found)


def _find(
    client: FedSimClient, jobs: Sequence[str] | None, labels: Sequence[str] | None, states: Set[JobState]
) -> list[JobHandle]:
    """Find all jobs first, so that a mistyped id changes no job.

    Args:
        client: of the service.
        jobs: ids, or their first characters.
        labels: in place of ids: all jobs with these labels that are in one of the states.
        states: of the jobs with the labels.

    Raises:
        SettingsError: neither ids nor labels are given, or both, or no job has the labels.
    """
    if bool(jobs) == bool(labels):
        raise SettingsError(
            "the command needs jobs or labels, and not both", "name JOB..., or --label NAME=VALUE"
        )
    if jobs:
        return list({handle.id: handle for handle in map(client.job, jobs)}.values())
    found = list(client.jobs(state=sorted(states), label=list(labels or ())))
    if not found:
        kind = "has ended" if states == FINAL else "is waiting or running"
        raise SettingsError(f"no job with --label {' '.join(labels or ())} {kind}", "see `fedsim list`")
    return found


def resume(
    job: JobArgument,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="New number of rounds, with those before; also for a job that has succeeded."
        ),
    ] = None,
    wait: WaitOption = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Continue a failed or cancelled job from its last checkpoint, or give an ended job more rounds."""
    from api.cli.display import print_message

    with connect(url) as client:
        handle = client.job(job)
        handle.resume(rounds)
        if format is Format.TEXT:
            done, total = handle.job.rounds_done, handle.job.rounds_total
            print_message(
                f"job {handle.id} is {handle.state} again; it continues after round {done} of {total}"
            )
        _wait_and_exit(handle, wait, format)


def clone(
    job: JobArgument,
    sets: SetOption = None,
    priority: Annotated[int | None, typer.Option(help="Default: the priority of JOB.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Replace the labels of JOB. Repeatable.")
    ] = None,
    wait: WaitOption = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Submit a copy of a job as a new job, and print the new id."""
    from jobs.spec.spec_text import parse_set_items

    fields = parse_set_items(sets or ())
    labels = None if label is None else parse_labels(label)
    with connect(url) as client:
        handle = client.job(job).clone(set=fields, priority=priority, labels=labels)
        if format is Format.TEXT:
            print(handle.id, flush=True)
        _wait_and_exit(handle, wait, format)


def delete(
    jobs: JobsArgument = None,
    label: SelectLabelOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Delete ended jobs with their rounds and files. Asks for confirmation."""
    from api.cli.display import print_json, print_message

    with connect(url) as client:
        handles = _find(client, jobs, label, FINAL)
        if not yes:
            _confirm(handles, "Delete", ", with rounds and files?", "nothing was deleted")
        for handle in handles:
            handle.delete()
            print_message(f"job {handle.id} was deleted")
    if format is Format.JSON:
        print_json({"deleted": [handle.id for handle in handles]})


def _confirm(handles: Sequence[JobHandle], verb: str, rest: str, refusal: str) -> None:
    """Show the first jobs, and ask: "Delete these 3 jobs, with rounds and files?".

    Raises:
        SettingsError: with the text of `refusal`, if the answer is not yes.
    """
    from api.cli.display import print_message

    for handle in islice(handles, 10):
        print_message(f"{handle.id}  {handle.job.name}  {handle.state}, {handle.job.rounds_done} rounds")
    count = "this job" if len(handles) == 1 else f"these {len(handles)} jobs"
    try:
        sure = typer.confirm(f"{verb} {count}{rest}", err=True)
    except typer.Abort:
        print_message("")  # the question's line has no end yet
        sure = False
    if not sure:
        raise SettingsError(refusal, "answer y, or give --yes")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    panel = "Jobs"
    app.command(rich_help_panel=panel)(submit)
    app.command("list", rich_help_panel=panel)(list_jobs)
    for command in (show, cancel, resume, clone, delete):
        app.command(rich_help_panel=panel)(command)
