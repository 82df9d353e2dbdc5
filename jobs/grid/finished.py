"""The finished runs of a table, by cell and seed; the missing runs, and those that other tables have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from jobs.grid.journal import Entry, Journal, find_round
from jobs.grid.table import Table, list_tables, load_table
from jobs.spec.sweep import Member

Cell: TypeAlias = tuple[str, ...]
"""A label of each axis."""

Found: TypeAlias = Mapping[Cell, Mapping[int, Entry]]
"""The finished runs of each cell, by seed."""


def list_missing(table: Table, journal: Journal) -> list[Member]:
    """Return the runs that the journal lacks."""
    finished = journal.read()
    return [member for member in table.runs() if member.spec_hash not in finished]


def take_entries(table: Table, journal: Journal, missing: Sequence[Member]) -> int:
    """Copy the missing runs that the journals of other tables in this folder have.

    The other table must have the same metric, all other metrics that this table shows, and at least as many
    points of the curves.

    Returns:
        The number of copied runs.
    """
    wanted, count = {member.spec_hash: member.run for member in missing}, 0
    for name in list_tables():
        other = load_table(name)
        same = other.metric == table.metric and set(other.metrics) >= set(table.metrics)
        if not wanted or name == table.name or not same or table.curve_every % other.curve_every:
            continue
        entries = Journal(journal.file.parent, name).read()
        for key in [key for key in wanted if key in entries]:
            journal.append(entries[key].copy_for_table(wanted.pop(key).labels, table.curve_every))
            count += 1
    return count


def find_cells(table: Table, entries: Mapping[str, Entry]) -> dict[Cell, dict[int, Entry]]:
    """Return the finished runs of each cell, by seed."""
    found: dict[Cell, dict[int, Entry]] = {cell: {} for cell in table.cells(list(table.axes))}
    for member in table.runs():
        if member.spec_hash in entries:
            found[member.run.cell][member.run.seed] = entries[member.spec_hash]
    return found


def add_views(table: Table, found: Found) -> Found:
    """Return the finished runs with the views, which are the same runs with another metric."""
    where, every = list(table.axes).index(table.columns[0]), dict(found)
    for name, view in table.views.items():
        for cell, by_seed in found.items():
            if cell[where] == view.of:
                has = {seed: entry for seed, entry in by_seed.items() if view.metric in entry.others}
                every[(*cell[:where], name, *cell[where + 1 :])] = {
                    seed: entry.with_metric(view.metric, table.metric) for seed, entry in has.items()
                }
    return every


def find_opponent(table: Table, found: Found, cell: Cell) -> Mapping[int, Entry]:
    """Return the runs that a cell is compared with: those of `against`, with the same other labels.

    If `against` has no such view, as FedAvg has no teacher, these are its runs with the table's metric.
    """
    labels = dict(zip(table.axes, cell, strict=True)) | {str(table.compared): str(table.against)}
    other = found[tuple(labels.values())]
    column = table.columns[0]
    if not other and labels[column] in table.views:
        other = found[tuple((labels | {column: table.views[labels[column]].of}).values())]
    return other


def count_rounds(table: Table, found: Found, cell: Cell, what: str) -> dict[int, float | None]:
    """Count the rounds until each run reaches the value of `against`, by seed.

    Args:
        table: with `against`.
        found: the finished runs, views included.
        cell: the cell of the runs.
        what: `reach` for the value of `against` after its last round, `reach_best` for its best value.

    Returns:
        The rounds of each seed; None for a run that never reaches the value, and NaN where the run of
        `against` has diverged: its accuracy is 0, which every model reaches.
    """
    goals = find_opponent(table, found, cell)
    rounds = dict[int, float | None]()
    for seed in sorted(found[cell].keys() & goals.keys()):
        goal = goals[seed].curve[max(goals[seed].curve)] if what == "reach" else goals[seed].best["value"]
        number = find_round(found[cell][seed].curve, goal)
        rounds[seed] = math.nan if goals[seed].has_diverged else number
    return rounds


def estimate_seconds(missing: Sequence[Member], entries: Sequence[Entry], processes: int = 1) -> float | None:
    """Estimate the time until all missing runs are made.

    A run lasts as long as the runs of its cell with other seeds, or as long as the mean of all runs.

    Returns:
        Seconds; None if no run has been made yet.
    """
    if not entries:
        return None
    by_cell: dict[Cell, list[float]] = {}
    for entry in entries:
        by_cell.setdefault(tuple(entry.labels.values()), []).append(entry.seconds)
    mean = fmean(entry.seconds for entry in entries)
    each = [by_cell.get(member.run.cell) for member in missing]
    return sum(fmean(known) if known else mean for known in each) / processes
