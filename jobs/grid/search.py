"""Values that a search chose: a table takes them from the finished runs of another table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from fedsim.errors import SettingsError
from jobs.grid.finished import find_cells, list_missing
from jobs.grid.journal import Entry, Journal
from jobs.grid.table import Choice, Search, Table, load_table

VALIDATION = "validation"
"""A word in the name of every metric by which a search may choose."""


def load_search(table: Table) -> Table | None:
    """The table of the runs that choose values for this one, at its scale; None if it has its own values.

    Raises:
        SettingsError: if there is no such table, or it does not fit.
    """
    if table.search is None:
        return None
    search, axis = load_table(table.search.table).on(table.preset), table.search.axis
    if VALIDATION not in search.metric:
        raise SettingsError(
            f"{table.name}: {search.name} compares runs by {search.metric}",
            "a search needs a metric of the validation set, such as global_validation_accuracy",
        )
    if axis not in search.axes or table.search.otherwise not in search.axes[axis]:
        raise SettingsError(
            f"{table.name}: search: {search.name} has no '{axis}: {table.search.otherwise}'",
            f"its labels: {', '.join(search.axes.get(axis, search.axes))}",
        )
    return search


def is_searched(table: Table, folder: Path) -> bool:
    """Whether all runs are finished that choose values for this table; True for a table without a search."""
    search = load_search(table)
    return search is None or not list_missing(search, Journal(folder, search.name))


def choose_values(table: Table, folder: Path) -> Table:
    """The table with the values that its search chose; a table without a search stays as it is.

    Each label takes the values of the best run among its candidates: the labels of the search with its name,
    or with its name, a comma and more. The first of equal runs counts, and a diverged run never does. A label
    without candidates takes the values of the search's other axes from the best run of `otherwise`.

    Args:
        table: with or without a search.
        folder: of the journals.

    Raises:
        SettingsError: if runs of the search are missing, or all candidates of a label diverged.
    """
    search = load_search(table)
    if search is None or table.search is None:
        return table
    journal = Journal(folder, search.name)
    if missing := list_missing(search, journal):
        raise SettingsError(
            f"{table.name} takes values that {search.name} chooses, and {len(missing)} of its"
            f" {len(search.runs())} runs are missing in {folder}",
            f"run it first: fedsim reproduce {search.name} --out {folder}",
        )
    scores = _read_scores(search, journal.read())
    axis, choices = table.search.axis, dict[str, Choice]()
    for label in table.axes[axis]:
        choices[label] = _choose(label, table.search, search, scores)
    chosen = {label: (*own, *choices[label].items) for label, own in table.axes[axis].items()}
    return table.model_copy(update={"axes": {**table.axes, axis: chosen}, "choices": choices})


def _read_scores(search: Table, entries: Mapping[str, Entry]) -> dict[tuple[str, ...], float]:
    """The mean score of each cell over the seeds; NaN if a run diverged."""
    found = find_cells(search, entries)
    return {
        cell: sum(entry.final[search.metric] for entry in by_seed.values()) / len(by_seed)
        for cell, by_seed in found.items()
    }


def _choose(label: str, asked: Search, search: Table, scores: Mapping[tuple[str, ...], float]) -> Choice:
    """The values of one label."""
    own = [each for each in search.axes[asked.axis] if each == label or each.startswith(f"{label}, ")]
    names, at = own or [asked.otherwise], list(search.axes).index(asked.axis)
    candidates = {cell: score for cell, score in scores.items() if cell[at] in names}
    known = {cell: score for cell, score in candidates.items() if math.isfinite(score)}
    if not known:
        raise SettingsError(f"{search.name}: every run of {label!r} diverged", "search among other values")
    best = max(known, key=lambda cell: known[cell])
    labels = dict(zip(search.axes, best, strict=True))
    used = {axis: each for axis, each in labels.items() if own or axis != asked.axis}
    # The axis that both tables have comes first: it may replace a whole field, of which others set a part.
    order = sorted(used, key=lambda axis: axis != asked.axis)
    return Choice(
        labels=tuple(used[axis] for axis in order),
        items=tuple(item for axis in order for item in search.axes[axis][used[axis]]),
        score=known[best] if own else None,
        candidates=len(candidates) if own else 0,
    )
