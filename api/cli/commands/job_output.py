"""The output of a job: `fedsim watch`, `events`, `logs`, `rounds`, `artifacts`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.connection import connect
from api.cli.commands.options import (
    Format,
    FormatOption,
    JobArgument,
    RoundsFormat,
    RunFormat,
    RunFormatOption,
    UrlOption,
    make_folder,
)

if TYPE_CHECKING:
    from api.sdk.job_handle import JobHandle
    from api.sdk.transport.stream import Message


def watch(job: JobArgument, format: RunFormatOption = RunFormat.TEXT, url: UrlOption = None) -> None:
    """Watch a job until it ends; exit code 1 unless it succeeds."""
    from api.cli.display import print_json, print_line

    with connect(url) as client:
        handle = client.job(job)
        if format is RunFormat.JSONL:
            for record in handle.watch():
                print_line(record.model_dump(mode="json"))
            raise typer.Exit(0 if handle.state == "SUCCEEDED" else 1)
        code = follow_to_end(handle)
        if format is RunFormat.JSON:
            rounds = [record.model_dump(mode="json") for record in handle.rounds()]
            print_json({"job": handle.job.model_dump(mode="json"), "rounds": rounds})
    raise typer.Exit(code)


def follow_to_end(handle: JobHandle) -> int:
    """Show a job until it ends; return the exit code: 0 if it succeeded, else 1."""
    from api.cli.display import format_end, print_message
    from api.cli.job_progress import follow_job, open_live_view

    try:
        with open_live_view(handle.job.name, handle.job.rounds_total) as view:
            follow_job(handle, view)
    except KeyboardInterrupt:
        name = handle.id
        print_message(
            f"the job keeps running. To watch it: fedsim watch {name}. To stop it: fedsim cancel {name}"
        )
        raise
    ended = handle.job
    print_message(f"job {ended.id} {format_end(ended)}")
    return 0 if ended.state == "SUCCEEDED" else 1


def events(
    job: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Print only events after this id.")] = 0,
    format: RunFormatOption = RunFormat.TEXT,
    url: UrlOption = None,
) -> None:
    """Print the events of a job, from its start until it ends."""
    from api.cli.display import print_json, print_line

    found: list[dict[str, Any]] = []
    with connect(url) as client:
        for event in client.job(job).events(after):
            if format is RunFormat.TEXT:
                print(_event_line(event), flush=True)
            elif format is RunFormat.JSONL:
                print_line(event._asdict())
            else:
                found.append(event._asdict())
    if format is RunFormat.JSON:
        print_json(found)


def _event_line(event: Message) -> str:
    from api.cli.job_progress import format_scores
    from jobs.store.records import RoundRecord

    if event.type == "round":
        text = f"{event.data['round']}  {format_scores(RoundRecord.model_validate(event.data))}"
    else:
        names = ("at", "state", "reason", "message")
        text = "  ".join(str(event.data[name]) for name in names if event.data.get(name))
    return f"{event.id:>6}  {event.type:<7}  {text}"


def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the job ends.")
    ] = False,
    tail: Annotated[int, typer.Option(min=0, help="Number of lines to print, counted from the end.")] = 500,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Print the log of a job. With --format json: one object; with -f also: one JSON string per line."""
    from api.cli.display import print_json, print_line

    with connect(url) as client:
        handle = client.job(job)
        if follow:
            for line in handle.follow_logs(tail):
                if format is Format.JSON:
                    print_line(line)
                else:
                    print(line, flush=True)
            return
        text = handle.logs(tail)
    if format is Format.JSON:
        print_json({"job": handle.id, "lines": text.splitlines()})
    else:
        sys.stdout.write(text)


def rounds(
    job: JobArgument,
    format: Annotated[RoundsFormat, typer.Option("--format", help="Output format.")] = RoundsFormat.TEXT,
    url: UrlOption = None,
) -> None:
    """Print the round records of a job."""
    from api.cli.display import make_rounds_table, print_json, print_line, print_table
    from api.sdk.round_table import format_csv, list_columns

    with connect(url) as client:
        records = client.job(job).rounds()
    if format is RoundsFormat.TEXT:
        print_table(make_rounds_table(records))
    elif format is RoundsFormat.CSV:
        sys.stdout.writelines(format_csv(list_columns(records), records))
    elif format is RoundsFormat.JSON:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        for record in records:
            print_line(record.model_dump(mode="json"))


def artifacts(
    job: JobArgument,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Files to download. Without names: list the files."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Download into DIR. Without names: download all files."),
    ] = None,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """List or download the artifacts (files) of a job."""
    from api.cli.display import print_json, print_message

    folder = Path() if out is None else make_folder(out)
    with connect(url) as client:
        handle = client.job(job)
        if not names and out is None:
            _list_artifacts(handle, format)
            return
        written = []
        for name in names or [each.name for each in handle.artifacts()]:
            written.append(str(handle.artifact(name, folder)))
            print_message(f"wrote {written[-1]}")
    if format is Format.JSON:
        print_json({"job": handle.id, "files": written})


def _list_artifacts(handle: JobHandle, format: Format) -> None:
    from api.cli.display import make_plain_text, make_table, print_json, print_table
    from api.reports.formatting import format_bytes

    found = handle.artifacts()
    if format is Format.JSON:
        print_json([each.model_dump(mode="json") for each in found])
        return
    rows = (
        (
            make_plain_text(each.name),
            "" if each.bytes is None else format_bytes(each.bytes),
            make_plain_text(each.description),
        )
        for each in found
    )
    print_table(make_table(("artifact", "size", "description"), rows, numbers=("size",)))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (watch, events, logs, rounds, artifacts):
        app.command(rich_help_panel="Jobs")(command)
