"""Run a table: make its missing runs, and write each of them into the journal as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from jobs.grid.finished import estimate_seconds, list_missing, take_entries
from jobs.grid.journal import Entry, Journal
from jobs.grid.table import Table
from jobs.spec.sweep import Member


class EndedRun(NamedTuple):
    """A run that has ended.

    Attributes:
        member: the run.
        entry: its line in the journal, or the reason of its failure.
    """

    member: Member
    entry: Entry | str


class TableProgress(NamedTuple):
    """The progress of a table.

    Attributes:
        left: number of runs that are missing.
        total: number of runs of the table.
        seconds: estimated time until all are made; None if no run has been made yet.
        ended: the run that has ended; None before the first one.
    """

    left: int
    total: int
    seconds: float | None
    ended: EndedRun | None = None


Runs: TypeAlias = Callable[[Table, Sequence[Member]], Iterator[EndedRun]]
"""A way to make runs: in processes, on Ray, or as jobs of a service. It yields each run as it ends."""


def run_table(
    table: Table, journal: Journal, runs: Runs, news: Callable[[TableProgress], None], at_a_time: int = 1
) -> list[str]:
    """Make every run that neither the journal nor the journals of other tables beside it have.

    Args:
        table: whose runs.
        journal: where finished runs are written.
        runs: how missing runs are made.
        news: called at the start and after each run.
        at_a_time: runs at the same time, for the time that is left.

    Returns:
        What did not work, one sentence for each run.

    Raises:
        SpecError: if a spec is wrong; with every fault.
        ValueError: if the table has searches whose values it has not taken.
    """
    if table.searches and not table.choices:
        raise ValueError(f"{table.name} has no values yet: call jobs.grid.search.choose_values")
    missing = list_missing(table, journal)
    if take_entries(table, journal, missing):
        missing = list_missing(table, journal)
    total, made = len(table.runs()), list(journal.read().values())
    left = {member.spec_hash: member for member in missing}

    def say(ended: EndedRun | None) -> None:
        news(TableProgress(len(left), total, estimate_seconds(list(left.values()), made, at_a_time), ended))

    say(None)
    faults = list[str]()
    for ended in runs(table, missing) if missing else ():
        del left[ended.member.spec_hash]
        if isinstance(ended.entry, str):
            faults.append(f"{ended.member.run}: {ended.entry}")
        else:
            journal.append(ended.entry)
            made.append(ended.entry)
        say(ended)
    return faults
