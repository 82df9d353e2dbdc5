"""Values that a search chose: a table takes them from the finished runs of another table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

from fedsim.errors import SettingsError
from fedsim.learning_tasks.metrics import is_lower_better
from jobs.grid.finished import find_cells, list_missing
from jobs.grid.journal import Entry, Journal
from jobs.grid.table import Choice, Search, Table, load_table

VALIDATION = "validation"
"""A word in the name of every metric by which a search may choose."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""A label of each axis that a search chooses from, with the axis."""


class _Scored(NamedTuple):
    """A search whose runs are finished.

    Attributes:
        asked: what the table asks of it.
        search: its table.
        scores: of all candidates; NaN for one that must not be chosen.
    """

    asked: Search
    search: Table
    scores: Mapping[Labels, float]


def load_searches(table: Table) -> list[Table]:
    """Load the tables whose runs choose values for this one, at its scale.

    Raises:
        SettingsError: if there is no such table, or it does not fit.
    """
    return [_load_search(table, asked) for asked in table.searches]


def _load_search(table: Table, asked: Search) -> Table:
    search, axis = load_table(asked.table).on(table.preset), asked.axis
    if VALIDATION not in search.metric:
        raise SettingsError(
            f"{table.name}: {search.name} compares runs by {search.metric}",
            "a search needs a metric of the validation set, such as global_validation_accuracy",
        )
    if axis not in search.axes or asked.otherwise not in search.axes[axis]:
        raise SettingsError(
            f"{table.name}: searches: {search.name} has no '{axis}: {asked.otherwise}'",
            f"its labels: {', '.join(search.axes.get(axis, search.axes))}",
        )
    return search


def is_searched(table: Table, folder: Path) -> bool:
    """Return whether all runs that choose values for this table are finished; True without a search."""
    return not any(list_missing(search, Journal(folder, search.name)) for search in load_searches(table))


def choose_values(table: Table, folder: Path) -> Table:
    """Return the table with the values that its searches chose; without a search, the table itself.

    Each label takes the best values among its candidates: the labels of a search with its name, or with its
    name, a comma and more that is no other label of the table. The first search that has any counts, and the
    first of equal candidates. One with a diverged run never does, nor does one at whose values of the other
    axes, such as the rate, `otherwise` has a diverged run: which of its relatives diverge there with a few
    seeds is luck. A label without candidates takes the values of the other axes from the best candidate of
    `otherwise`, in the first search.

    A candidate's score is its mean over the seeds and over the further axes that both tables have, such as
    `data`: one rate has to do for all of them.

    Args:
        table: with or without a search.
        folder: of the journals.

    Raises:
        SettingsError: if runs of the search are missing, or no candidate of a label can be chosen.
    """
    if not table.searches:
        return table
    pairs = zip(table.searches, load_searches(table), strict=True)
    scored = [_score_candidates(table, asked, search, folder) for asked, search in pairs]
    axis = table.searches[0].axis
    choices = {label: _choose(label, table, scored) for label in table.axes[axis]}
    chosen = {label: (*own, *choices[label].items) for label, own in table.axes[axis].items()}
    return table.model_copy(update={"axes": {**table.axes, axis: chosen}, "choices": choices})


def _score_candidates(table: Table, asked: Search, search: Table, folder: Path) -> _Scored:
    """Score all candidates of a search for a table."""
    journal = Journal(folder, search.name)
    if missing := list_missing(search, journal):
        raise SettingsError(
            f"{table.name} takes values that {search.name} chooses, and {len(missing)} of its"
            f" {len(search.runs())} runs are missing in {folder}",
            f"run it first: fedsim reproduce {search.name} --out {folder}",
        )
    searched = [name for name in search.axes if name == asked.axis or name not in table.axes]
    scores = _rule_out_unstable(_read_scores(search, searched, journal.read()), asked)
    return _Scored(asked, search, scores)


def _read_scores(search: Table, axes: Sequence[str], entries: Mapping[str, Entry]) -> dict[Labels, float]:
    """Return the mean score for each label of these axes; NaN if a run diverged."""
    scores: dict[Labels, list[float]] = {}
    for cell, by_seed in find_cells(search, entries).items():
        labels = dict(zip(search.axes, cell, strict=True))
        scores.setdefault(tuple((axis, labels[axis]) for axis in axes), []).extend(
            math.nan if _has_bad_validation(run) else run.final[search.metric] for run in by_seed.values()
        )
    return {labels: fmean(each) for labels, each in scores.items()}


def _rule_out_unstable(scores: Mapping[Labels, float], asked: Search) -> dict[Labels, float]:
    """Set the scores to NaN at the values of the other axes at which a run of `otherwise` diverged."""

    def others(labels: Labels) -> Labels:
        return tuple(each for each in labels if each[0] != asked.axis)

    own = (asked.axis, asked.otherwise)
    unstable = {others(labels) for labels, score in scores.items() if own in labels and math.isnan(score)}
    return {labels: math.nan if others(labels) in unstable else score for labels, score in scores.items()}


def _has_bad_validation(entry: Entry) -> bool:
    """Return whether a validation figure is not finite: a model of NaN has accuracy 0, but loss NaN."""
    return any(not math.isfinite(value) for name, value in entry.final.items() if VALIDATION in name)


def _list_candidates(label: str, table: Table, search: Table, axis: str) -> list[str]:
    """List the labels of a search among which a label of the table chooses."""
    others = table.axes[axis].keys() - {label}
    own = (each for each in search.axes[axis] if each == label or each.startswith(f"{label}, "))
    return [each for each in own if each not in others]


def _choose(label: str, table: Table, scored: Sequence[_Scored]) -> Choice:
    """Choose the values of one label."""
    lists = [_list_candidates(label, table, each.search, each.asked.axis) for each in scored]
    place = next((place for place, each in enumerate(lists) if each), 0)
    own, (asked, search, scores) = lists[place], scored[place]
    names = own or [asked.otherwise]
    candidates = {labels: score for labels, score in scores.items() if dict(labels)[asked.axis] in names}
    known = {labels: score for labels, score in candidates.items() if math.isfinite(score)}
    if not known:
        raise SettingsError(
            f"{search.name}: {label!r} or {asked.otherwise} has a diverged run at every value",
            "search among other values",
        )
    sign = -1 if is_lower_better(search.metric) else 1
    best = max(known, key=lambda labels: sign * known[labels])
    used = {axis: each for axis, each in best if own or axis != asked.axis}
    # The axis that both tables have comes first: it may replace a whole field, of which others set a part.
    order = sorted(used, key=lambda axis: axis != asked.axis)
    return Choice(
        search=search.name,
        labels=tuple(used[axis] for axis in order),
        items=tuple(item for axis in order for item in search.axes[axis][used[axis]]),
        score=known[best] if own else None,
        candidates=len(candidates) if own else 0,
    )
