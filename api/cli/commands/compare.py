"""`fedsim compare`: groups of runs side by side, as a table and as a figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import (
    AgainstOption,
    ComparedArgument,
    ComparedLabelOption,
    LastOption,
    MetricOption,
    UrlOption,
    parse_labels,
)

if TYPE_CHECKING:
    from api.comparison.records import Comparison, ComparisonGroup

FIGURE_FORMATS = (".pdf", ".png", ".svg")


class CompareFormat(StrEnum):
    """Output format of a comparison."""

    TEXT = "text"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


def compare(
    runs: ComparedArgument = None,
    label: ComparedLabelOption = None,
    metric: MetricOption = None,
    last: LastOption = 5,
    against: AgainstOption = None,
    target: Annotated[
        float | None, typer.Option(help="The target value. Default: the worst final value among the runs.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="One row for each run, instead of one for all seeds of a group.")
    ] = False,
    format: Annotated[
        CompareFormat, typer.Option("--format", help="Output format. csv and json have all digits.")
    ] = CompareFormat.TEXT,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", metavar="FILE", help="Also draw the curves into a .pdf, .svg or .png file."),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Compare runs: means over seeds, differences paired by seed, and the cost to reach a target.

    Runs that differ by their seeds alone are one group.
    """
    from api.cli.display import print_json, print_message, print_table
    from api.sdk.run_comparison import compare as compare_runs

    if figure is not None:
        check_figure_path(figure)
    parse_labels(label)  # refuses a label without a value
    options = {"metric": metric, "target": target, "last": last, "against": against, "together": not each}
    found = compare_runs(*runs or (), label=label or None, url=url, **options)
    if format is CompareFormat.JSON:
        print_json(found.model_dump(mode="json"))
    elif format is CompareFormat.TEXT:
        for table in _make_tables(found):
            print_table(table)
    else:
        from api.reports.comparison_tables import PaperFormat, render_table

        print(render_table(found, PaperFormat(format.value)), end="")
    for note in found.notes:
        print_message(note)
    if format is CompareFormat.TEXT:
        print_message("best on test = value of the best round on the test set; this is an optimistic value")
        if any(group.final is not None and group.final.deviation is not None for group in found.groups):
            print_message(
                "± = one standard deviation over seeds; [ ] = 95 % interval of the difference paired by seed;"
                " p = p-value of the paired t-test, adjusted by Holm's method"
            )
    if figure is not None:
        _draw(found, figure)


def check_figure_path(path: Path) -> None:
    """Refuse a figure that cannot be written, before the runs are read.

    Raises:
        SettingsError: the ending is unknown, or the folder does not exist.
    """
    from fedsim.errors import SettingsError

    if path.suffix.lower() not in FIGURE_FORMATS:
        raise SettingsError(
            f"--figure {str(path)!r} has an unknown ending", f"allowed: {', '.join(FIGURE_FORMATS)}"
        )
    if not path.parent.is_dir():
        raise SettingsError(
            f"--figure {str(path)!r}: there is no folder {str(path.parent)!r}", "create it first"
        )


def _draw(found: Comparison, path: Path) -> None:
    from api.cli.display import print_message
    from api.reports.comparison_figure import make_comparison_figure
    from api.reports.pictures import save_figure
    from fedsim.errors import SettingsError

    drawn = make_comparison_figure(found)
    if drawn is None:
        raise SettingsError(
            f"there is nothing to draw: no round has a finite {found.metric!r}", "wait for an evaluation"
        )
    try:
        save_figure(drawn, path)
    except OSError as error:
        raise SettingsError(f"--figure {str(path)!r} cannot be written: {error.strerror}") from error
    print_message(f"wrote {path}")


def _make_tables(found: Comparison) -> list[Any]:
    """Make the table of the figures, and the table of the differences if there are any."""
    from api.cli.display import make_plain_text, make_table
    from api.reports.comparison_tables import format_difference, make_cost_table

    measures = found.list_measures()
    lead = [found.metric, "runs", *(title for _, title in measures)]
    cost_heads, costs = make_cost_table(found)
    rows = [
        [*_list_scores(found, group), *cells] for group, (_, *cells) in zip(found.counted, costs, strict=True)
    ]
    heads = [*lead, *cost_heads[1:]]
    tables = [make_table(heads, [[*map(make_plain_text, row)] for row in rows], numbers=heads[2:])]
    compared = [
        group
        for group in found.counted
        if any(getattr(group, name) and getattr(group, name).difference for name, _ in measures)
    ]
    if compared:
        heads = [f"difference from {found.baseline}", *(title for _, title in measures)]
        cells = [
            [group.name, *(format_difference(found.metric, getattr(group, name)) for name, _ in measures)]
            for group in compared
        ]
        tables.append(make_table(heads, [[*map(make_plain_text, row)] for row in cells]))
    return tables


def _list_scores(found: Comparison, group: ComparisonGroup) -> list[str]:
    from api.reports.comparison_tables import format_spread
    from api.reports.formatting import format_metric_value

    scores = (getattr(group, name) for name, _ in found.list_measures())
    return [
        group.title,
        group.runs[0] if len(group.members) == 1 else group.num_scores,
        *(format_spread(score, lambda value: format_metric_value(found.metric, value)) for score in scores),
    ]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(compare)
