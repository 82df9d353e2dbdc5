"""The parts of a rendered table: a cell's mean and spread, and the lines of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from jobs.grid.finished import Cell

NONE_KNOWN = "–"
"""A cell without a figure."""


def spread(values: Sequence[float], seeds: int, *, digits: int, signed: bool = False) -> str:
    """Write mean ± sample standard deviation, and the number of seeds if some are missing."""
    if not values:
        return NONE_KNOWN
    text = f"{fmean(values):{'+' if signed else ''}.{digits}f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.{digits}f}"
    return text if len(values) == seeds else f"{text} ({len(values)})"


def render_lines(
    heads: Sequence[str],
    rows: Sequence[Cell],
    titles: Sequence[str],
    columns: Sequence[Cell],
    figure: Callable[[Cell, Cell], str],
) -> str:
    """Render a table of Markdown.

    Args:
        heads: headings of the columns that name a row.
        rows: their labels.
        titles: headings of the other columns.
        columns: their labels.
        figure: of a row and a column.
    """
    cells = [[*row, *(figure(row, column) for column in columns)] for row in rows]
    return make_lines([*heads, *titles], cells)


def make_lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table from its headings and the cells of its rows."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
