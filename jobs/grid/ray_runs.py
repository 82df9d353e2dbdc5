"""The runs of a table on Ray, one after another, each with all workers of its spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedsim.errors import FedsimError
from jobs.grid.one_run import find_code_version, make_entry
from jobs.grid.runner import EndedRun
from jobs.grid.table import Table
from jobs.run.execute import execute
from jobs.run.ray_connection import connect_to_ray
from jobs.settings import Settings
from jobs.spec.sweep import Member


def run_on_ray(table: Table, missing: Sequence[Member], settings: Settings) -> Iterator[EndedRun]:
    """Make runs as `fedsim run` does, on the Ray of `FEDSIM_RAY_ADDRESS` or on one that is started for them.

    Yields:
        Each run with its entry, or with the reason of its failure.
    """
    code = find_code_version()
    with connect_to_ray(settings):
        for member in missing:
            try:
                result = execute(member.spec, settings)
                yield EndedRun(member, make_entry(member, table, result.records, result.personal, code=code))
            except FedsimError as error:
                yield EndedRun(member, str(error))
