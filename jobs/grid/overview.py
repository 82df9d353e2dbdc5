"""The overview of a table: for each column the accuracies, and the costs until a target is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from jobs.grid.finished import Cell, Found
from jobs.grid.journal import Entry, find_round
from jobs.grid.spread import render_lines, spread, spread_reached
from jobs.grid.table import OVERVIEW, Table

POINTS = 3
"""An accuracy is the mean of this many last scored rounds: single rounds are up or down by chance."""

GLOBAL = "global_accuracy"
"""The metric of the second target, which methods without a global model do not have."""

COSTS = ("rounds", "10^6 bytes", "processor seconds")
"""The costs until a run reaches the target."""


def render_overview(table: Table, runs: Found) -> list[str]:
    """Render accuracies and costs for each label of the column axes, and list the missing runs.

    Costs are those until two targets: one for the table's metric, and one for the global model.
    """
    others = [name for name in (GLOBAL,) if name != table.metric]
    parts = [
        f"Accuracies are in percent, the mean of the last {POINTS} scored rounds. Rounds, bytes and seconds"
        f" are those until a run reaches the score of `{table.against}` with the same seed,"
        f" by `{table.metric}`"
        + "".join(f", and in a table of their own by `{name}`" for name in others)
        + ". `(1 of 3)`: only one run of three reaches it, and the figure is that run's. – stands for runs"
        " without this figure, or of which none reaches it."
    ]
    for column in table.cells(table.columns):
        by_row = {row: runs[_order(table, row, column)] for row in table.cells(table.rows)}
        parts += [f"### {', '.join(column)}", _render(table, by_row, (*OVERVIEW, *COSTS), table.metric)]
        for name in others:
            having = {row: found for row, found in by_row.items() if _has(table, name, found)}
            if having:
                parts += [f"Until `{name}` reaches that of `{table.against}`:"]
                parts += [_render(table, having, COSTS, name)]
        if absent := [", ".join(row) for row, by_seed in by_row.items() if not by_seed]:
            parts.append(f"Not run: {', '.join(absent)}.")
    return parts


def _has(table: Table, metric: str, found: Mapping[int, Entry]) -> bool:
    return any(average_last_points(entry, metric, table) is not None for entry in found.values())


def _order(table: Table, row: Cell, column: Cell) -> Cell:
    labels = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
    return tuple(labels[axis] for axis in table.axes)


def _render(table: Table, by_row: Found, columns: Sequence[str], target: str) -> str:
    """Render one table.

    Args:
        table: the table.
        by_row: its runs in one column.
        columns: names of `OVERVIEW` and `COSTS`.
        target: the metric that has to reach that of `against`.
    """
    opponents = by_row.get((str(table.against),), {})
    goals = {
        seed: goal
        for seed, entry in opponents.items()
        if not entry.has_diverged and (goal := average_last_points(entry, target, table)) is not None
    }

    def figure(row: Cell, column: Cell) -> str:
        (name,), by_seed, seeds = column, by_row[row], len(table.seeds)
        if name in OVERVIEW:
            scores = (average_last_points(entry, name, table) for entry in by_seed.values())
            return spread([100 * score for score in scores if score is not None], seeds, digits=1)
        spent = [
            measure_reach(entry, find_curve(entry, target, table), goals[seed])[COSTS.index(name)]
            for seed, entry in by_seed.items()
            if seed in goals
        ]
        return spread_reached(spent, seeds, digits=0)

    titles = [OVERVIEW.get(name, name) for name in columns]
    return render_lines(table.rows, list(by_row), titles, [(name,) for name in columns], figure)


def find_curve(entry: Entry, metric: str, table: Table) -> Mapping[int, float]:
    """Return a metric of a run by round; {} if it was not measured."""
    return entry.curve if metric == table.metric else getattr(entry.others.get(metric), "curve", {})


def average_last_points(entry: Entry, metric: str, table: Table) -> float | None:
    """Return the mean of a metric over the last scored rounds; None if it was not measured."""
    curve = find_curve(entry, metric, table)
    values = [curve[number] for number in sorted(curve)[-POINTS:]]
    return fmean(values) if values else None


def measure_reach(
    entry: Entry, curve: Mapping[int, float], goal: float
) -> tuple[float | None, float | None, float | None]:
    """Return rounds, 10^6 bytes and processor seconds until a curve reaches the goal; None if never."""
    first = find_round(curve, goal)
    spent = None if first is None else entry.spent.get(first)
    if first is None or spent is None:
        return first, None, None
    return first, spent.bytes / 1e6, spent.processor_seconds
