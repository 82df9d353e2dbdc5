"""`fedsim sweep`: a grid of specs and seeds as one group of jobs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from api.cli.commands.options import (
    Format,
    FormatOption,
    Place,
    SetOption,
    UrlOption,
    make_folder,
    refuse_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from api.sdk.sweeps import Cell, News, SweepView
    from jobs.store.records import Job


def sweep(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A YAML or JSON file with base, axes and seeds, or '-'.")
    ],
    sets: SetOption = None,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until the jobs end; exit code 1 unless all succeed."),
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume jobs that failed or were cancelled.")
    ] = False,
    on: Annotated[
        Place,
        typer.Option("--on", help="service: jobs; pool: processes on this machine; ray: one by one."),
    ] = Place.SERVICE,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Runs at the same time (pool). Default: 2.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs of pool and ray. Default: swept."),
    ] = None,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Run a grid of specs and seeds, by default as one group of jobs, and print a table at the end.

    Run again: makes only the missing runs.
    """
    options = {
        "--no-wait": (not wait, [Place.SERVICE]),
        "--resume": (resume, [Place.SERVICE]),
        "--url": (url is not None, [Place.SERVICE]),
        "--processes": (processes is not None, [Place.POOL]),
        "--out": (out is not None, [Place.POOL, Place.RAY]),
    }
    refuse_options(on, options)
    if on is not Place.SERVICE:
        _run_here(file, sets or (), on, processes or 2, out or Path("swept"), format)
    from api.cli.commands.connection import connect
    from api.cli.display import print_json, print_message, print_table, show_waiting
    from jobs.spec.sweep import read_sweep

    grid = read_sweep(file, sets or ())
    with connect(url) as client:
        with show_waiting(f"submitting {grid.name}") as show:
            handle = client.sweep(grid, resume=resume, news=_make_slow_progress(show))
        print_message(
            f"group {grid.name}: {describe_progress(handle)}; "
            f"`fedsim list --label {shlex.quote(f'group={grid.name}')}` lists its jobs"
        )
        try:
            with show_waiting(describe_progress(handle)) as show:
                done = handle.wait(news=lambda view: show(describe_progress(view))) if wait else True
        except KeyboardInterrupt:
            print_message("the jobs keep running; run the same command again to watch them")
            raise
    if format is Format.JSON:
        print_json(handle.document())
    else:
        print_table(_table(handle))
    for line in _describe_failures(handle):
        print_message(line)
    if handle.succeeded and len(handle.cells()) > 1:
        print_message(f"`fedsim compare {shlex.quote(grid.name)}` compares the cells, seed by seed")
    raise typer.Exit(0 if done else 1)


def _run_here(
    file: str, sets: Sequence[str], place: Place, processes: int, out: Path, format: Format
) -> None:
    """Make the runs on this machine, print their table, and end the command."""
    from api.cli.display import print_json, print_message, print_table
    from api.cli.local_sweep import count_finished, make_slug, require_no_gpus, run_sweep
    from api.sdk.sweeps import SweepView
    from jobs.file_locks import lock_folder
    from jobs.settings import Settings
    from jobs.spec.sweep import members, read_sweep

    grid = read_sweep(file, sets)
    view = SweepView(grid, members(grid))
    if place is Place.POOL:
        require_no_gpus(view.members)
    folder = make_folder(out / (make_slug(grid.name) or "sweep"))
    settings = Settings.from_env().add_local_folders(file)
    at_a_time = processes if place is Place.POOL else None
    try:
        with lock_folder(folder, "sweep"):
            if there := count_finished(view.members, folder):
                print_message(
                    f"{there} of {len(view.members)} runs are in {folder} and are not made again;"
                    " if code or data has changed since, give another --out"
                )
            for member, ended in run_sweep(view.members, folder, settings, at_a_time):
                view.found[member.spec_hash] = cast("Job", ended)
                failed = f" failed: {ended.message}" if ended.message else ""
                count = f"{len(view.found)} of {len(view.members)} runs"
                print_message(f"{grid.name}: {count}; {member.run}{failed}")
    except KeyboardInterrupt:
        print_message(f"stopped; {folder} has the runs; the same command goes on")
        raise
    if format is Format.JSON:
        print_json(view.document())
    else:
        print_table(_table(view))
    for line in _describe_missing_metric(view):
        print_message(line)
    if view.succeeded and len(view.cells()) > 1:
        print_message(f"`fedsim compare {shlex.quote(str(folder))}` compares the cells, seed by seed")
    raise typer.Exit(0 if view.succeeded else 1)


def _make_slow_progress(show: Callable[[str], None]) -> News:
    """Return a callback that shows the progress of the submissions, at most once per second."""
    from time import monotonic

    last = monotonic()

    def show_submissions(view: SweepView) -> None:
        nonlocal last
        if monotonic() - last > 1:
            last = monotonic()
            show(f"submitting {view.sweep.name}: {len(view.found)} of {len(view.members)} runs have a job")

    return show_submissions


def describe_progress(view: SweepView) -> str:
    """Count the runs of each state, e.g. `6 runs: 2 RUNNING, 4 QUEUED`."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(view.counts().items()))
    return f"{len(view.members)} runs: {states}"


def _table(view: SweepView) -> Any:
    from api.cli.display import make_plain_text, make_table

    heads = (*view.sweep.axes, view.metric, "runs")
    rows = (
        [*map(make_plain_text, cell.labels.values()), _figure(cell), _runs(cell)] for cell in view.cells()
    )
    return make_table(heads, rows, numbers=heads[-2:])


def _figure(cell: Cell) -> str:
    if cell.mean is None:
        return ""
    return f"{cell.mean:.4f}" + ("" if cell.std is None else f" ± {cell.std:.4f}")


def _runs(cell: Cell) -> str:
    return f"{len(cell.values)} of {cell.expected}"


def _describe_failures(view: SweepView) -> list[str]:
    """List the failed and cancelled jobs, at most 5, and a missing metric."""
    ended = [(member, view.job_of(member)) for member in view.members]
    bad = [(m, job) for m, job in ended if job is not None and job.state in ("FAILED", "CANCELLED")]
    lines = [f"{m.run}: job {job.id} {job.state}: {job.message or ''}" for m, job in bad[:5]]
    if len(bad) > len(lines):
        lines.append(f"and {len(bad) - len(lines)} more")
    if bad:
        lines.append("`fedsim sweep FILE --resume` continues them from their checkpoints")
    return lines + _describe_missing_metric(view)


def _describe_missing_metric(view: SweepView) -> list[str]:
    """Explain an empty table: the runs succeeded, but none has the metric."""
    metric, done = view.metric, [job for job in view.found.values() if job.state == "SUCCEEDED"]
    if not done or any(metric in job.last_metrics for job in done):
        return []
    known = ", ".join(sorted({name for job in done for name in job.last_metrics}))
    return [f"no run has the metric {metric!r}; `metric` in the file may be one of: {known}"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(sweep)
