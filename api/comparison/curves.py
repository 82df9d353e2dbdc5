"""The mean curve of a group of runs, with its standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from pydantic import Field

from api.comparison.run_scores import list_scores
from jobs.store.records import FrozenRecord, RoundRecord

Along: TypeAlias = Literal["rounds", "bytes", "seconds", "updates", "flops", "clock", "joules"]
"""The horizontal axis of curves; all but rounds are totals since the start of the run. `clock` has the
simulated seconds and `joules` the energy, of runs with devices."""


class GroupCurve(FrozenRecord):
    """The curve of a group, in the rounds in which every run has a score."""

    rounds: list[int]
    x: list[float] = Field(description="Places on the horizontal axis: means over the runs.")
    mean: list[float]
    deviation: list[float] = Field(description="Standard deviation of the sample; empty for one run.")


def make_curve(runs: Sequence[Sequence[RoundRecord]], metric: str, along: Along) -> GroupCurve:
    """Make the curve of a group.

    Args:
        runs: the records of each run, in order.
        metric: a metric of the records.
        along: the horizontal axis.
    """
    scores = [{score.round: score.value for score in list_scores(records, metric)} for records in runs]
    places = [
        dict(zip((record.round for record in run), _list_places(run, along), strict=True)) for run in runs
    ]
    rounds = [round for round in scores[0] if all(round in each for each in scores)] if scores else []
    found = [[each[round] for each in scores] for round in rounds]
    return GroupCurve(
        rounds=rounds,
        x=[fmean(each[round] for each in places) for round in rounds],
        mean=[fmean(values) for values in found],
        deviation=[stdev(values) for values in found] if len(runs) > 1 else [],
    )


def _list_places(records: Sequence[RoundRecord], along: Along) -> list[float]:
    """List the place of each record on the horizontal axis."""
    if along == "rounds":
        return [float(record.round) for record in records]
    if along == "bytes":
        return list(accumulate(float(record.bytes.down + record.bytes.up) for record in records))
    if along == "seconds":
        return list(accumulate(record.seconds.total for record in records))
    if along == "clock":
        return [record.clock.total if record.clock else 0.0 for record in records]
    if along == "joules":
        return list(accumulate(record.clock.joules if record.clock else 0.0 for record in records))
    # Records of older versions have no cost.
    spent = (float(getattr(record.cost, along)) if record.cost else 0.0 for record in records)
    return list(accumulate(spent))
