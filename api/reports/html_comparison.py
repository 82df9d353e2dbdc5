"""The report of a comparison: one HTML file with groups, figure, differences of the specs, and runs."""

from __future__ import annotations

from html import escape

from api.comparison.records import Comparison
from api.reports.comparison_figure import make_comparison_figure
from api.reports.comparison_tables import find_best_cells, make_cost_table, make_paper_table
from api.reports.formatting import format_metric, format_metric_value
from api.reports.html_page import render_figure, render_page, render_table


def render_comparison(name: str, found: Comparison) -> str:
    """Render the report of a comparison as HTML, with the chart library inside.

    Args:
        name: title of the page.
        found: the comparison.
    """
    heads, rows = make_paper_table(found)
    best = find_best_cells(rows)
    figure = make_comparison_figure(found)
    counted = [index for index, group in enumerate(found.groups) if group.runs]
    groups = [found.groups[index].name for index in counted]
    fields = [[each.field, *(each.values[index] for index in counted)] for each in found.differences]
    direction = "lower" if found.lower_is_better else "higher"
    facts = [
        f"{format_metric(found.metric)}: {direction} is better",
        "mean ± standard deviation over the seeds",
        f"differences from {found.baseline}, paired by seed, with 95 % interval and Holm's p",
    ]
    body = [
        *(f"<p>{escape(note)}</p>" for note in found.notes),
        render_table("Groups", heads, [[cell.text for cell in row] for row in rows], best) if rows else "",
        render_figure(figure, first=True) if figure else "",
        render_table("Best round on the test set (optimistic), and cost", *make_cost_table(found))
        if rows
        else "",
        render_table("What differs in the specs", ["field", *groups], fields) if fields else "",
        render_table("Runs", *_list_runs(found)),
    ]
    return render_page(name, facts, body)


def _list_runs(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """List the runs of each group, with their single values."""
    groups = {run: group for group in found.groups for run in group.members}
    heads = [
        "run",
        "group",
        "seed",
        "state",
        "rounds",
        "last round",
        f"mean of the last {found.last}",
        "best on test",
    ]
    rows = [
        [
            line.run,
            groups[line.run].name + ("" if line.run in groups[line.run].runs else " (not counted)"),
            "" if line.seed is None else str(line.seed),
            line.state.lower(),
            str(line.rounds),
            format_metric_value(found.metric, line.final and line.final.value),
            format_metric_value(found.metric, line.last_rounds),
            f"{format_metric_value(found.metric, line.best.value)} at round {line.best.round}"
            if line.best
            else "",
        ]
        for line in found.lines
    ]
    return heads, rows
