"""The overview of a table: for each column the accuracies, and the costs until a target is reached."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from jobs.grid.finished import Cell, Found
from jobs.grid.journal import Entry
from jobs.grid.spread import render_lines, spread
from jobs.grid.table import OVERVIEW, Table

POINTS = 3
"""How many of the last scored rounds an accuracy is the mean of: single rounds are up or down by chance."""

COSTS = ("rounds", "10^6 bytes", "processor seconds")
"""What a run spends until it reaches the target."""


def overview(table: Table, runs: Found) -> list[str]:
    """Headings and tables, one table for each label of the column axes."""
    parts = [
        f"Accuracies are in percent, the mean of the last {POINTS} scored rounds. Rounds, bytes and seconds"
        f" are those until `{table.metric}` comes up to that of `{table.against}` with the same seed."
    ]
    for column in table.cells(table.columns):
        by_row = {row: runs[_order(table, row, column)] for row in table.cells(table.rows)}
        goals = {
            seed: last_points(e, table.metric, table) for seed, e in by_row[(str(table.against),)].items()
        }
        parts += [f"### {', '.join(column)}", _render(table, by_row, goals)]
    return parts


def _order(table: Table, row: Cell, column: Cell) -> Cell:
    labels = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
    return tuple(labels[axis] for axis in table.axes)


def _render(table: Table, by_row: Found, goals: Mapping[int, float | None]) -> str:
    def figure(row: Cell, column: Cell) -> str:
        (name,), by_seed, seeds = column, by_row[row], len(table.seeds)
        if name in OVERVIEW:
            scores = (last_points(entry, name, table) for entry in by_seed.values())
            return spread([100 * score for score in scores if score is not None], seeds, digits=1)
        spent = (
            reach(by_seed[seed], goals[seed])[COSTS.index(name)] for seed in by_seed.keys() & goals.keys()
        )
        return spread([value for value in spent if value is not None], seeds, digits=0)

    columns = [(name,) for name in (*OVERVIEW, *COSTS)]
    return render_lines(table.rows, list(by_row), [*OVERVIEW.values(), *COSTS], columns, figure)


def last_points(entry: Entry, metric: str, table: Table) -> float | None:
    """The mean of a metric over the last scored rounds; None where it was not measured."""
    curve = entry.curve if metric == table.metric else getattr(entry.others.get(metric), "curve", {})
    values = [curve[number] for number in sorted(curve)[-POINTS:]]
    return fmean(values) if values else None


def reach(entry: Entry, goal: float | None) -> tuple[float | None, float | None, float | None]:
    """Rounds, 10^6 bytes and processor seconds until a run reaches the goal; None where it never does."""
    if goal is None:
        return None, None, None
    first = next((number for number in sorted(entry.curve) if entry.curve[number] >= goal), None)
    spent = None if first is None else entry.spent.get(first)
    if first is None or spent is None:
        return first, None, None
    return first, spent.bytes / 1e6, spent.processor_seconds
