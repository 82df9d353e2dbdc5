"""Jobs of a service: `fedsim submit`, `clone`, `list`, `show`, `watch`, `logs`, `rounds`, `cancel`, ..."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.options import (
    DataFormat,
    Format,
    Job,
    RoundsFormat,
    RunFormat,
    RunsFormat,
    Sets,
    Spec,
    Url,
    parse_labels,
)

if TYPE_CHECKING:
    from api.client import FedSimClient
    from api.job_handle import JobHandle


def connect(url: str | None) -> FedSimClient:
    """Make a client for the service named, else the one started here, else the one at the default address."""
    from api.client import FedSimClient
    from api.local_service import default_url

    return FedSimClient(url or default_url())


def submit(
    spec: Spec,
    sets: Sets = None,
    priority: Annotated[int, typer.Option(help="Higher ones leave the queue first.")] = 0,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="To find the job by. Repeatable.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it succeeds.")
    ] = False,
    format: DataFormat = Format.TEXT,
    url: Url = None,
) -> None:
    """Submit a job to the service and print its id."""
    from api.display import print_json
    from jobs.spec import load_spec

    loaded = load_spec(spec, sets or ())
    labels = parse_labels(label)
    with connect(url) as client:
        handle = client.submit(loaded, priority=priority, labels=labels)
        if format is Format.TEXT:
            print(handle.id, flush=True)
        code = _watch(handle, None) if wait else 0
        if format is Format.JSON:
            print_json(handle.job.model_dump(mode="json"))
    raise typer.Exit(code)


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state, e.g. RUNNING.")] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label: NAME or NAME=VALUE.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    format: DataFormat = Format.TEXT,
    url: Url = None,
) -> None:
    """List the jobs, the youngest first."""
    from itertools import islice

    from api.display import data, jobs_table, print_json, say

    with connect(url) as client:
        found = client.jobs(state=state.upper() if state else None, label=label)
        jobs = [handle.job for handle in islice(found, limit)]
    if format is Format.JSON:
        print_json([job.model_dump(mode="json") for job in jobs])
    elif jobs:
        data().print(jobs_table(jobs))
    else:
        say("no jobs; submit one with: fedsim submit demo")


def show(job: Job, format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """Show one job: its state, its latest metrics and its spec."""
    from api.display import print_json
    from api.job_text import describe

    with connect(url) as client:
        found = client.job(job).job
    if format is Format.JSON:
        print_json(found.model_dump(mode="json"))
    else:
        describe(found)


def watch(job: Job, format: RunsFormat = RunFormat.TEXT, url: Url = None) -> None:
    """Watch a job until it has ended; exit 1 unless it succeeds."""
    from api.display import print_json, print_line

    with connect(url) as client:
        handle = client.job(job)
        if format is RunFormat.JSONL:
            for record in handle.watch():
                print_line(record.model_dump(mode="json"))
            raise typer.Exit(0 if handle.state == "SUCCEEDED" else 1)
        code = _watch(handle, job)
        if format is RunFormat.JSON:
            rounds = [record.model_dump(mode="json") for record in handle.rounds()]
            print_json({"job": handle.job.model_dump(mode="json"), "rounds": rounds})
    raise typer.Exit(code)


def _watch(handle: JobHandle, job: str | None) -> int:
    from api.display import say
    from api.live import follow, live_view

    try:
        with live_view(handle.job.name, handle.job.rounds_total) as view:
            follow(handle, view)
    except KeyboardInterrupt:
        name = handle.id
        say(f"the job goes on: `fedsim watch {name}` comes back to it, `fedsim cancel {name}` ends it")
        raise
    ended = handle.job
    say(f"job {ended.id} {ended.state}" + (f": {ended.message}" if ended.message else ""))
    return 0 if ended.state == "SUCCEEDED" else 1


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    tail: Annotated[int, typer.Option(min=0, help="How many of the last lines.")] = 500,
    url: Url = None,
) -> None:
    """Print a job's own log."""
    with connect(url) as client:
        handle = client.job(job)
        if not follow:
            sys.stdout.write(handle.logs(tail))
            return
        for line in handle.follow_logs(tail):
            print(line, flush=True)


def rounds(
    job: Job,
    format: Annotated[RoundsFormat, typer.Option("--format", help="How to print them.")] = RoundsFormat.TEXT,
    url: Url = None,
) -> None:
    """Print the records of a job's rounds."""
    from api.display import data, print_json, print_line, rounds_table
    from api.round_table import columns, csv_lines

    with connect(url) as client:
        records = client.job(job).rounds()
    if format is RoundsFormat.TEXT:
        data().print(rounds_table(records))
    elif format is RoundsFormat.CSV:
        sys.stdout.writelines(csv_lines(columns(records), records))
    elif format is RoundsFormat.JSON:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        for record in records:
            print_line(record.model_dump(mode="json"))


def cancel(job: Job, format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """Cancel a job: a waiting one at once, a running one within seconds."""
    from api.display import print_json, say

    with connect(url) as client:
        handle = client.job(job)
        handle.cancel()
    if format is Format.JSON:
        print_json(handle.job.model_dump(mode="json"))
    else:
        say(f"job {handle.id} is {handle.state}")


def resume(
    job: Job,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it succeeds.")
    ] = False,
    format: DataFormat = Format.TEXT,
    url: Url = None,
) -> None:
    """Have a job that failed or was cancelled go on from its last checkpoint."""
    from api.display import print_json, say

    with connect(url) as client:
        handle = client.job(job)
        handle.resume()
        if format is Format.TEXT:
            done = handle.job.rounds_done
            say(f"job {handle.id} is {handle.state} again, with {done} of {handle.job.rounds_total} rounds")
        code = _watch(handle, None) if wait else 0
        if format is Format.JSON:
            print_json(handle.job.model_dump(mode="json"))
    raise typer.Exit(code)


def clone(
    job: Job,
    sets: Sets = None,
    priority: Annotated[int | None, typer.Option(help="By default the priority of JOB.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="In place of JOB's labels. Repeatable.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it succeeds.")
    ] = False,
    format: DataFormat = Format.TEXT,
    url: Url = None,
) -> None:
    """Queue a new job with the spec of another one, and print its id."""
    from api.display import print_json
    from jobs.spec_text import parse_sets

    fields = parse_sets(sets or ())
    labels = None if label is None else parse_labels(label)
    with connect(url) as client:
        handle = client.job(job).clone(set=fields, priority=priority, labels=labels)
        if format is Format.TEXT:
            print(handle.id, flush=True)
        code = _watch(handle, None) if wait else 0
        if format is Format.JSON:
            print_json(handle.job.model_dump(mode="json"))
    raise typer.Exit(code)


def delete(job: Job, url: Url = None) -> None:
    """Remove a job that has ended, with its rounds and files."""
    from api.display import say

    with connect(url) as client:
        client.job(job).delete()
    say(f"job {job} is deleted")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    panel = "Jobs"
    app.command(rich_help_panel=panel)(submit)
    app.command("list", rich_help_panel=panel)(list_jobs)
    for command in (show, watch, logs, rounds, cancel, resume, clone, delete):
        app.command(rich_help_panel=panel)(command)
