"""`fedsim reproduce`: run a result table of a paper, and judge the paper's claims by it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import Format, FormatOption, Place, UrlOption, make_folder, refuse_options
from fedsim.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobs.grid.runner import Runs, TableProgress
    from jobs.grid.table import Table
    from jobs.grid.verdicts import Verdict


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table, its YAML file, or 'list' for all tables."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option("--scale", help="small: the table's own preset; paper: the paper's; or a preset."),
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds. Default: those of the table.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Runs at the same time (pool). Default: 2.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, or cuda for the first GPU (pool). Default: cpu.")
    ] = None,
    on: Annotated[
        Place,
        typer.Option("--on", help="pool: processes on this machine; ray: one by one; service: jobs."),
    ] = Place.POOL,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the finished runs, one file per table.")
    ] = Path("reproduced"),
    report: Annotated[
        bool, typer.Option("--report", help="Make no runs; write a page for each paper from finished runs.")
    ] = False,
    pages: Annotated[
        Path | None,
        typer.Option("--pages", metavar="DIR", help="Folder of the pages. Default: --out."),
    ] = None,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Run a result table of a paper, and judge the paper's claims by it.

    Finished runs are kept: run it again to continue. --report writes a page for each paper. A table whose
    values a search chooses makes the runs of the search first.
    """
    from api.cli.display import print_json, print_message, print_table
    from jobs.grid.search import choose_values, load_searches

    if report:
        own = None if name in (None, "list") else _read_table(name, scale, seeds)
        written = write_pages(out, pages or out, own)
        for path in written:
            print_message(f"wrote {path}")
        if format is Format.JSON:
            print_json([str(path) for path in written])
        return
    if name is None or name == "list":
        listed = _list_tables(out)
        if format is Format.JSON:
            print_json(listed)
        else:
            print_table(_draw_list(listed))
        return
    options = {
        "--processes": (processes is not None, [Place.POOL]),
        "--device": (device is not None, [Place.POOL]),
        "--url": (url is not None, [Place.SERVICE]),
    }
    refuse_options(on, options)
    table, out = _read_table(name, scale, seeds), make_folder(out)
    processes, device = processes or 2, device or "cpu"
    faults = [
        fault
        for search in load_searches(table)
        for fault in _make_runs(search, out, on, processes, device, url)
    ]
    if not faults:
        table = choose_values(table, out)
        faults = _make_runs(table, out, on, processes, device, url)
        _print_claims(table, name, out, format)
    for fault in faults:
        print_message(f"failed: {fault}")
    raise typer.Exit(1 if faults else 0)


def _read_table(name: str, scale: str, seeds: int | None) -> Table:
    from jobs.grid.table import load_table

    table = load_table(name).at_scale(scale)
    return table if seeds is None else table.with_seeds(seeds)


def _make_runs(
    table: Table, out: Path, place: Place, processes: int, device: str, url: str | None
) -> list[str]:
    from api.cli.display import print_message
    from jobs.grid.journal import Journal
    from jobs.grid.runner import run_table

    journal = Journal(out, table.name)
    try:
        with _open_runs(place, processes, device, url) as (runs, at_a_time):
            return run_table(
                table, journal, runs, lambda progress: print_message(_describe(table, progress)), at_a_time
            )
    except KeyboardInterrupt:
        print_message(f"stopped; {journal.file} has the finished runs; the same command goes on")
        raise


@contextmanager
def _open_runs(place: Place, processes: int, device: str, url: str | None) -> Iterator[tuple[Runs, int]]:
    """Yield the way to make runs, and how many run at a time."""
    from jobs.settings import Settings

    if device not in ("cpu", "cuda"):
        raise SettingsError(f"--device {device}", "write cpu or cuda")
    settings = Settings.from_env()
    if place is Place.RAY:
        from jobs.grid.ray_runs import run_on_ray

        yield lambda table, missing: run_on_ray(table, missing, settings), 1
    elif place is Place.SERVICE:
        from api.cli.commands.connection import connect
        from api.cli.service_runs import run_on_service

        with connect(url) as client:
            yield lambda table, missing: run_on_service(table, missing, client), 1
    else:
        import torch

        from jobs.grid.process_pool import run_in_processes

        if device == "cuda" and not torch.cuda.is_available():
            raise SettingsError("--device cuda: torch finds no GPU that it can use here", "leave it out")
        how: dict[str, Any] = {"processes": processes, "device": device}
        yield lambda table, missing: run_in_processes(table, missing, settings, **how), processes


def _describe(table: Table, progress: TableProgress) -> str:
    """Write how far a table is, e.g. `demo-claim: 3 of 9 runs, about 12 s left; 2 rounds, seed 1 failed`."""
    from api.reports.formatting import format_duration

    text = f"{table.name}: {progress.total - progress.left} of {progress.total} runs"
    if progress.left and progress.seconds is not None:
        text += f", about {format_duration(progress.seconds)} left"
    if progress.ended is None:
        return text
    member, entry = progress.ended
    said = "failed" if isinstance(entry, str) else f"took {format_duration(entry.seconds)}"
    return f"{text}; {member.run} {said}"


def _list_tables(out: Path) -> list[dict[str, Any]]:
    """List the tables: paper, name, what each shows, its runs, how many are finished, processor hours."""
    from jobs.grid.finished import list_missing
    from jobs.grid.journal import Journal
    from jobs.grid.pages import find_paper
    from jobs.grid.search import choose_values, is_searched
    from jobs.grid.table import list_tables, load_table

    listed = []
    for table in map(load_table, list_tables()):
        total = len(table.runs())
        if is_searched(table, out):
            missing = list_missing(choose_values(table, out), Journal(out, table.name))
        else:
            missing = table.runs()
        about = {"paper": find_paper(table.page).short, "table": table.name, "shows": table.title}
        listed.append({**about, "runs": total, "finished": total - len(missing), "hours": table.hours})
    return listed


def _draw_list(listed: list[dict[str, Any]]) -> Any:
    from api.cli.display import make_plain_text, make_table

    rows = []
    for each in listed:
        texts = (make_plain_text(each[name]) for name in ("paper", "table", "shows"))
        hours = "" if each["hours"] is None else f"{each['hours']:.2g}"
        rows.append([*texts, f"{each['finished']}/{each['runs']}", hours])
    return make_table(("paper", "table", "shows", "runs", "hours"), rows, numbers=("runs", "hours"))


def _print_claims(table: Table, name: str, out: Path, format: Format) -> None:
    """Print the verdicts on the claims of a table; `name` is the word by which it was asked for."""
    from api.cli.display import make_plain_text, make_table, print_json, print_message, print_table
    from jobs.grid.journal import Journal
    from jobs.grid.verdicts import judge_claims

    verdicts = judge_claims(table, Journal(out, table.name).read())
    if format is Format.JSON:
        print_json([verdict.to_dict() for verdict in verdicts])
        return
    heads = ("claim", "cells", "verdict", "difference", "p (Holm)")
    rows = (
        [
            *(make_plain_text(verdict.claim.sentence), make_plain_text(verdict.describe_cell())),
            *(make_plain_text(verdict.describe()), verdict.format_difference(), verdict.format_p()),
        ]
        for verdict in verdicts
    )
    if verdicts:
        print_table(make_table(heads, rows))
        for line in _explain_verdicts(table, verdicts):
            print_message(line)
    print_message(
        f"finished runs: {Journal(out, table.name).file}; for the tables and the card:"
        f" fedsim reproduce {name} --report --out {out}"
    )


def _explain_verdicts(table: Table, verdicts: Sequence[Verdict]) -> list[str]:
    """Write how to read the verdicts: the difference, its interval, the three words, and p."""
    only = all(verdict.claim.metric is None for verdict in verdicts)
    metric = f" of {table.metric}" if only else ""
    units = {verdict.unit for verdict in verdicts if verdict.difference is not None}
    points = ", in percentage points" if units == {"points"} else ""
    seeds = ", ".join(map(str, table.seeds))
    count = sum(verdict.p_value is not None for verdict in verdicts)
    words = list[str]()
    if any(verdict.claim.margin is not None for verdict in verdicts):
        words.append(
            "of level claims, held: the interval lies within the margin; reversed: it lies outside."
            " Of claims of no less, held: it lies above the lower end of the margin"
        )
    if any(verdict.claim.by is not None for verdict in verdicts):
        words.append("of claims by more than a number, held: the interval lies beyond; reversed: short of it")
    return [
        f"difference: the first cell minus the second{metric}, seed by seed ({seeds}): mean and 95 % interval"
        + points,
        "held: the interval excludes 0 in the claimed direction; reversed: in the other direction;"
        " undecided: it includes 0",
        *words,
        f"p (Holm): of the paired t-test, adjusted for {count} comparisons",
    ]


def write_pages(out: Path, pages: Path, own: Table | None = None) -> list[Path]:
    """Write the sections of tables and the card of each paper into its page.

    Args:
        out: the folder of the finished runs.
        pages: the folder of the pages.
        own: only the page of this table; None for all pages.

    Returns:
        The pages.
    """
    from jobs.grid.card import write_report
    from jobs.grid.table import list_tables, load_table

    chosen = {each: load_table(each) for each in list_tables()}
    if own is not None:
        same = {each: table for each, table in chosen.items() if table.page == own.page}
        chosen = {**same, own.name: own}
    return write_report(list(chosen.values()), out, make_folder(pages))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Start here")(reproduce)
