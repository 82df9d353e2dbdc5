"""`fedsim partition`: examples and classes of each client, before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import Format, FormatOption, SetOption, SpecArgument, make_folder

if TYPE_CHECKING:
    from jobs.run.partition_report import PartitionReport

PartitionOutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the partition, its statistics and a page into DIR."),
]


def partition(
    spec: SpecArgument,
    sets: SetOption = None,
    out: PartitionOutOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Make the partition of a spec and show how many examples and classes each client has."""
    from api.cli.display import (
        make_data_console,
        make_plain_text,
        print_json,
        print_message,
        print_table,
        show_waiting,
    )
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names

    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    folder = make_folder(out) if out is not None else None
    with show_waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.run.partition_report import make_partition_report

        report = make_partition_report(loaded, Settings.from_env().add_local_folders(spec), show)
    if folder is not None:
        print_message(f"wrote {', '.join(write_partition_files(folder, report))} into {folder}")
    if format is Format.JSON:
        print_json(report.document())
        return
    make_data_console().print(make_plain_text(report.title()))
    print_table(_table(report))
    for note in report.notes:
        print_message(f"note: {note}")


def write_partition_files(folder: Path, report: PartitionReport) -> list[str]:
    """Write the partition (unless its clients only sample), `statistics.json` and `partition.html`.

    Args:
        folder: existing output folder.
        report: the partition with its statistics.

    Returns:
        The names of the written files.
    """
    from api.reports.html_partition import render_partition

    text = json.dumps(report.document(), indent=2, ensure_ascii=False) + "\n"
    files = {"statistics.json": text, "partition.html": render_partition(report)}
    saved = [file.name for file in report.save(folder)]
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [*saved, *files]


def _table(report: PartitionReport) -> Any:
    from api.cli.display import make_table

    figures, heads = report.document()["statistics"], ("for each client", "min", "median", "max", "mean")
    classes = (report.counts > 0).sum(axis=1).mean()
    rows = (
        ("examples", _cells(figures["sizes"], ",.0f"), f"{report.sizes.mean():,.1f}"),
        (f"classes, of {len(report.classes)}", _cells(figures["classes_per_client"], "g"), f"{classes:.1f}"),
        (
            "EMD to the class distribution of all clients (earth mover's distance)",
            _cells(figures["distance_to_all"], ".3f"),
            f"{figures['distance_to_all']['mean']:.3f}",
        ),
    )
    return make_table(heads, ((name, *cells, mean) for name, cells, mean in rows), numbers=heads[1:])


def _cells(figures: dict[str, float], form: str) -> list[str]:
    return [format(figures[name], form) for name in ("min", "median", "max")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Specs")(partition)
