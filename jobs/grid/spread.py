"""The parts of a rendered table: a cell's mean and spread, and the lines of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean, stdev

from jobs.grid.finished import Cell

NONE_KNOWN = "–"
"""A cell without a figure."""


def spread(values: Sequence[float], seeds: int, *, digits: int, signed: bool = False) -> str:
    """Write mean ± standard deviation of the finite values, and their number if some seeds are missing."""
    known = [value for value in values if isfinite(value)]
    if not known:
        return NONE_KNOWN
    text = f"{fmean(known):{'+' if signed else ''}.{digits}f}"
    if len(known) > 1:
        text += f" ± {stdev(known):.{digits}f}"
    return text if len(known) == seeds else f"{text} ({len(known)})"


def spread_reached(values: Sequence[float | None], seeds: int, *, digits: int) -> str:
    """Write `spread` of what runs took to reach a goal, and how many of the runs reach it if not all do.

    Args:
        values: one for each run; None or NaN for one that never reaches the goal.
        seeds: number of seeds of the table.
        digits: decimal places.

    >>> spread_reached([30, 40], 2, digits=0), spread_reached([30, None, None], 3, digits=0)
    ('35 ± 7', '30 (1 of 3)')
    """
    known = [value for value in values if value is not None and isfinite(value)]
    if not known or len(known) == len(values):
        return spread(known, seeds, digits=digits)
    return f"{spread(known, len(known), digits=digits)} ({len(known)} of {len(values)})"


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
