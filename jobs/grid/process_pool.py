"""The runs of a table in processes of this machine: one run per process and thread, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.grid.journal import Entry
from jobs.grid.one_run import find_code_version, make_run
from jobs.grid.runner import EndedRun
from jobs.grid.table import Table
from jobs.run.without_ray.populations import Populations
from jobs.run.without_ray.processes import finish_pieces
from jobs.settings import Settings
from jobs.spec.sweep import Member


class _Runner:
    """Makes runs of a table; runs with the same data share it."""

    def __init__(self, table: Table, settings: Settings, code: str, device: str) -> None:
        self.table, self.settings, self.shared = table, settings, Populations()
        self.code, self.device = code, device

    def __call__(self, member: Member) -> Entry | str:
        try:
            return make_run(member, self.table, self.settings, self.shared, self.code, self.device)
        except Exception as error:  # one broken run must not end the table
            return f"{type(error).__name__}: {error}"


def run_in_processes(
    table: Table, missing: Sequence[Member], settings: Settings, *, processes: int = 2, device: str = "cpu"
) -> Iterator[EndedRun]:
    """Make runs in processes.

    Args:
        table: whose runs.
        missing: the runs.
        settings: where data is.
        processes: runs at a time, each on one thread.
        device: where runs train, "cpu" or "cuda", whose first GPU all processes share.

    Yields:
        Each run with its entry, or with the reason of its failure, as it ends.
    """
    arguments = (table, settings, find_code_version(), device)
    for member, entry in finish_pieces(missing, processes, _Runner, arguments):
        yield EndedRun(member, entry)
