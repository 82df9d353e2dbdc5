"""`fedsim compare`: runs side by side."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import Runs, TableFormat, TablesFormat, Url

if TYPE_CHECKING:
    from api.reports.comparison import Comparison, Line, Run


def compare(
    runs: Runs,
    target: Annotated[
        float | None, typer.Option(help="The value to reach; by default the worst final one among the runs.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="The metric to compare; of a loss the smaller is better.")
    ] = "global_accuracy",
    format: TablesFormat = TableFormat.TEXT,
    url: Url = None,
) -> None:
    """Compare runs: rounds to a target, final and best value, bytes, seconds, side by side."""
    from api.cli.display import data, print_json, say
    from api.reports.comparison import compare as side_by_side

    found = side_by_side(list(_read(runs, url)), metric, target)
    if format is TableFormat.JSON:
        print_json(found.document())
    elif format is TableFormat.CSV:
        rows = [line.flat() for line in found.lines]
        writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        data().print(_table(found))
        say("best: in the best round on the test set, which flatters")


def _read(runs: Sequence[str], url: str | None) -> Iterator[Run]:
    """Read the files, and ask the service for the jobs; no service is asked where all are files."""
    from api.cli.commands.connection import connect
    from api.reports.comparison import Run

    paths = [Path(run).expanduser() for run in runs]
    if all(path.exists() for path in paths):
        yield from (_from_files(run, path) for run, path in zip(runs, paths, strict=True))
        return
    with connect(url) as client:
        for run, path in zip(runs, paths, strict=True):
            if path.exists():
                yield _from_files(run, path)
            else:
                handle = client.job(run)
                yield Run(handle.id, handle.job.name, handle.rounds())


def _from_files(run: str, path: Path) -> Run:
    from api.reports.comparison import Run
    from api.reports.run_files import no_records, read_name, read_records
    from jobs.store.records import RoundRecord

    try:
        records = [RoundRecord.model_validate(record) for record in read_records(path)]
    except ValueError as error:
        raise no_records(path, f"{type(error).__name__}: {error}") from None
    return Run(run, read_name(path), records)


def _table(found: Comparison) -> Any:
    from api.cli.display import table
    from api.reports.formatting import number

    target = f"rounds to {number(found.target)}"
    heads = (
        "run",
        "name",
        "rounds",
        f"final {found.metric}",
        "best",
        target,
        "bytes to it",
        "bytes",
        "seconds",
    )
    return table(heads, (_cells(line) for line in found.lines), numbers=heads[2:])


def _cells(line: Line) -> list[Any]:
    from api.cli.display import plain
    from api.reports.formatting import share, size

    reached, best = line.reached, line.best
    return [
        plain(line.run),
        plain(line.name),
        str(line.rounds),
        share(line.final and line.final.value),
        f"{share(best.value)} ({best.round})" if best else "",
        str(reached.rounds) if reached else "never",
        size(reached.bytes) if reached else "",
        size(line.bytes),
        f"{line.seconds:.1f}",
    ]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(compare)
