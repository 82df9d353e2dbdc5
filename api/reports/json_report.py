"""The JSON report of a job: spec, rounds and result, in the format of `fedsim run --format json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from jobs.run.run_result import RunSummary
from jobs.store.records import Job, RoundRecord


def generate_report_lines(job: Job, records: Iterable[RoundRecord]) -> Iterator[str]:
    """Write the report with one record per line, without holding all records in memory.

    Args:
        job: the job.
        records: its round records, in order.
    """
    result = RunSummary()
    yield f'{{"spec": {json.dumps(job.spec)},\n"rounds": ['
    for number, record in enumerate(records):
        result.add(record)
        yield f"{',' if number else ''}\n{record.model_dump_json()}"
    yield f'],\n"result": {json.dumps(result.document())}}}\n'
