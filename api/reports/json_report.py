"""A job's report: spec, rounds and result in one JSON object, as `fedsim run --format json` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from jobs.run.final_model import FinalModel
from jobs.store.records import Cost, Job, RoundRecord


class RunSummary:
    """The result of a run, put together while its records go by."""

    def __init__(self) -> None:
        self.final: dict[str, Any] = {}
        self.best: dict[str, Any] = {}
        self.chosen = FinalModel()
        self.rounds, self.seconds, self.down, self.up, self.personal = 0, 0.0, 0, 0, 0
        self.cost = Cost(updates=0, flops=0)

    def add_record(self, record: RoundRecord) -> None:
        """Take the next record."""
        self.final = record.metrics
        self.chosen.add(record)
        accuracy = record.metrics.get("global_accuracy")
        if isinstance(accuracy, float) and accuracy > self.best.get("global_accuracy", -1.0):
            self.best = {"round": record.round, "global_accuracy": accuracy}
        self.rounds += 1
        self.seconds += record.seconds.total
        self.down, self.up = self.down + record.bytes.down, self.up + record.bytes.up
        self.personal += record.bytes.personal
        self.cost += record.cost or Cost(updates=0, flops=0)

    def to_document(self) -> dict[str, Any]:
        """Give final, best (by model and split too, where there is validation) and totals."""
        totals = {
            "rounds": self.rounds,
            "seconds": round(self.seconds, 3),
            "bytes": {"down": self.down, "up": self.up, "personal": self.personal},
            "cost": self.cost.model_dump(),
        }
        return {"final": self.final, "best": self.best, **self.chosen.document(), "totals": totals}


def generate_report_lines(job: Job, records: Iterable[RoundRecord]) -> Iterator[str]:
    """Write the report, a record to each line, without holding them all.

    Args:
        job: of which it is.
        records: its rounds, in their order.
    """
    result = RunSummary()
    yield f'{{"spec": {json.dumps(job.spec)},\n"rounds": ['
    for number, record in enumerate(records):
        result.add_record(record)
        yield f"{',' if number else ''}\n{record.model_dump_json()}"
    yield f'],\n"result": {json.dumps(result.to_document())}}}\n'
