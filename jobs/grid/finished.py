"""The finished runs of a table: which are missing, which another table has, and the runs of each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from jobs.grid.journal import Entry, Journal
from jobs.grid.table import Table, load_table, tables
from jobs.spec.sweep import Member

Cell: TypeAlias = tuple[str, ...]
"""A label of each axis."""

Found: TypeAlias = Mapping[Cell, Mapping[int, Entry]]
"""The finished runs of each cell, by seed."""


def list_missing(table: Table, journal: Journal) -> list[Member]:
    """The runs that are still to be made."""
    finished = journal.read()
    return [member for member in table.runs() if member.spec_hash not in finished]


def take_entries(table: Table, journal: Journal, missing: Sequence[Member]) -> int:
    """Write down the missing runs that the journals of other tables in this folder have.

    Only from tables that follow the same metric, all others that this one shows, and at least as many points
    of the curves: their lines say all that a run of this table would.

    Returns:
        How many.
    """
    wanted, count = {member.spec_hash: member.run for member in missing}, 0
    for name in tables():
        other = load_table(name)
        same = other.metric == table.metric and set(other.metrics) >= set(table.metrics)
        if not wanted or name == table.name or not same or table.curve_every % other.curve_every:
            continue
        entries = Journal(journal.file.parent, name).read()
        for key in [key for key in wanted if key in entries]:
            journal.append(entries[key].taken(wanted.pop(key).labels, table.curve_every))
            count += 1
    return count


def find_cells(table: Table, entries: Mapping[str, Entry]) -> dict[Cell, dict[int, Entry]]:
    """The finished runs of each cell, by seed."""
    found: dict[Cell, dict[int, Entry]] = {cell: {} for cell in table.cells(list(table.axes))}
    for member in table.runs():
        if member.spec_hash in entries:
            found[member.run.cell][member.run.seed] = entries[member.spec_hash]
    return found


def add_views(table: Table, found: Found) -> Found:
    """The finished runs, and the views: the same runs with another metric."""
    where, every = list(table.axes).index(table.columns[0]), dict(found)
    for name, view in table.views.items():
        for cell, by_seed in found.items():
            if cell[where] == view.of:
                has = {seed: entry for seed, entry in by_seed.items() if view.metric in entry.others}
                every[(*cell[:where], name, *cell[where + 1 :])] = {
                    seed: entry.seen(view.metric, table.metric) for seed, entry in has.items()
                }
    return every


def find_opponent(table: Table, found: Found, cell: Cell) -> Mapping[int, Entry]:
    """The runs that a cell is compared with: those of `against`, with the same other labels.

    FedAvg has no teacher: where `against` has no such view, its runs with the table's metric.
    """
    labels = dict(zip(table.axes, cell, strict=True)) | {str(table.compared): str(table.against)}
    other = found[tuple(labels.values())]
    column = table.columns[0]
    if not other and labels[column] in table.views:
        other = found[tuple((labels | {column: table.views[labels[column]].of}).values())]
    return other


def count_rounds(table: Table, found: Found, cell: Cell, what: str) -> dict[int, int | None]:
    """The first point of each run's curve that comes up to the value of `against`, by seed.

    Args:
        table: with `against`.
        found: the finished runs, views included.
        cell: whose runs are counted.
        what: `reach` for the value of `against` after its last round, `reach_best` for its best value.

    Returns:
        Rounds; None for a run that never comes up to it.
    """
    goals = find_opponent(table, found, cell)
    rounds = dict[int, int | None]()
    for seed in sorted(found[cell].keys() & goals.keys()):
        goal = goals[seed].curve[max(goals[seed].curve)] if what == "reach" else goals[seed].best["value"]
        curve = found[cell][seed].curve
        rounds[seed] = next((number for number in sorted(curve) if curve[number] >= goal), None)
    return rounds


def estimate_seconds(missing: Sequence[Member], entries: Sequence[Entry], processes: int = 1) -> float | None:
    """The time until all missing runs are made, by the runs that were made.

    A run is taken to last as long as the runs of its cell with other seeds, else as long as the mean of all.

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
