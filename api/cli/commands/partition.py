"""`fedsim partition`: who would hold what, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import DataFormat, Format, Sets, Spec, make_folder

if TYPE_CHECKING:
    from jobs.run.partition_report import Dealing

OutFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the partition, its statistics and a page into DIR."),
]


def partition(spec: Spec, sets: Sets = None, out: OutFolder = None, format: DataFormat = Format.TEXT) -> None:
    """Make the partition of a spec, and show who holds what."""
    from api.cli.display import data, plain, print_json, say, waiting
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_whole

    loaded = parse_whole(read_spec(spec, sets or ()))
    folder = make_folder(out) if out is not None else None
    with waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.run.partition_report import deal

        dealing = deal(loaded, Settings.from_env(), show)
    if folder is not None:
        say(f"wrote {', '.join(write_files(folder, dealing))} into {folder}")
    if format is Format.JSON:
        print_json(dealing.document())
        return
    data().print(plain(dealing.title()))
    data().print(_table(dealing))
    for note in dealing.notes:
        say(f"note: {note}")


def write_files(folder: Path, dealing: Dealing) -> list[str]:
    """Write the partition (unless its clients only sample), `statistics.json` and `partition.html`.

    Args:
        folder: where to.
        dealing: the partition with its figures.

    Returns:
        The names of the files.
    """
    from api.reports.partition_page import partition_page

    text = json.dumps(dealing.document(), indent=2, ensure_ascii=False) + "\n"
    files = {"statistics.json": text, "partition.html": partition_page(dealing)}
    saved = [file.name for file in dealing.save(folder)]
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [*saved, *files]


def _table(dealing: Dealing) -> Any:
    from api.cli.display import table

    figures, heads = dealing.document()["statistics"], ("for each client", "min", "median", "max", "mean")
    classes = (dealing.counts > 0).sum(axis=1).mean()
    rows = (
        ("examples", _cells(figures["sizes"], ",.0f"), f"{dealing.sizes.mean():,.1f}"),
        (f"classes, of {len(dealing.classes)}", _cells(figures["classes_per_client"], "g"), f"{classes:.1f}"),
        (
            "EMD to all clients",
            _cells(figures["distance_to_all"], ".3f"),
            f"{figures['distance_to_all']['mean']:.3f}",
        ),
    )
    return table(heads, ((name, *cells, mean) for name, cells, mean in rows), numbers=heads[1:])


def _cells(figures: dict[str, float], form: str) -> list[str]:
    return [format(figures[name], form) for name in ("min", "median", "max")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="What a spec can say")(partition)
