"""Runs side by side: how far each came, how soon it was as good as the others, and what that cost."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedsim.errors import SettingsError
from jobs.store.records import RoundRecord


class RoundScore(NamedTuple):
    """A value of the metric, and the round that has it."""

    round: int
    value: float


class RunCost(NamedTuple):
    """What it took to come to the target: rounds, simulated bytes in both directions, seconds."""

    rounds: int
    bytes: int
    seconds: float


class ComparisonRow(NamedTuple):
    """One run of a comparison.

    Attributes:
        run: what it was called when it was asked for: a job's id, a file.
        name: the name in its spec.
        rounds: how many rounds it has.
        final: the metric in the last round that was scored; None where none was.
        best: the best round on the test set, which flatters.
        reached: what it took to come to the target; None where it never did.
        bytes: simulated bytes of the whole run, in both directions.
        seconds: wall clock of its rounds.
    """

    run: str
    name: str
    rounds: int
    final: RoundScore | None
    best: RoundScore | None
    cost_to_target: RunCost | None
    bytes: int
    seconds: float

    def to_row(self) -> dict[str, Any]:
        """Give the line as one row of a table; what there is not is None."""
        final, best, reached = self.final, self.best, self.cost_to_target
        return {
            "run": self.run,
            "name": self.name,
            "rounds": self.rounds,
            "final": final and final.value,
            "best": best and best.value,
            "best_round": best and best.round,
            "rounds_to_target": reached and reached.rounds,
            "bytes_to_target": reached and reached.bytes,
            "seconds_to_target": reached and reached.seconds,
            "bytes": self.bytes,
            "seconds": self.seconds,
        }


class Comparison(NamedTuple):
    """Several runs, held against one target.

    Attributes:
        metric: what is compared.
        target: the value that counts as reached; None where no run was ever scored.
        lines: one for each run, in the order asked for.
    """

    metric: str
    target: float | None
    lines: list[ComparisonRow]

    def to_document(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**self._asdict(), "lines": [line.to_row() for line in self.lines]}


class ComparedRun(NamedTuple):
    """What a comparison needs of a run: what to call it, its name, its records in their order."""

    run: str
    name: str
    records: Sequence[RoundRecord]


def smaller_is_better(metric: str) -> bool:
    """Tell whether a metric is a loss."""
    return metric.endswith("loss")


def list_scores(records: Sequence[RoundRecord], metric: str) -> Iterator[RoundScore]:
    """The rounds in which the metric was measured."""
    for record in records:
        value = record.metrics.get(metric)
        if isinstance(value, int | float):
            yield RoundScore(record.round, float(value))


def compare_runs(
    runs: Sequence[ComparedRun], metric: str = "global_accuracy", target: float | None = None
) -> Comparison:
    """Hold runs against one target.

    Args:
        runs: at least one.
        metric: a metric of the records; of a loss the smaller value is the better one.
        target: the value to reach; by default the worst final value among the runs, so that all reach it.

    Raises:
        SettingsError: no record has the metric.
    """
    sign = -1.0 if smaller_is_better(metric) else 1.0
    found = [list(list_scores(run.records, metric)) for run in runs]
    if not any(found):
        _refuse(runs, metric)
    if target is None:
        target = sign * min(sign * each[-1].value for each in found if each)
    return Comparison(
        metric, target, [_line(run, each, sign, target) for run, each in zip(runs, found, strict=True)]
    )


def _line(run: ComparedRun, found: Sequence[RoundScore], sign: float, target: float) -> ComparisonRow:
    first = next((score.round for score in found if sign * score.value >= sign * target), None)
    whole = _cost(run.records)
    return ComparisonRow(
        run.run,
        run.name,
        len(run.records),
        found[-1] if found else None,
        max(found, key=lambda score: sign * score.value) if found else None,
        None if first is None else _cost([record for record in run.records if record.round <= first]),
        whole.bytes,
        whole.seconds,
    )


def _cost(records: Sequence[RoundRecord]) -> RunCost:
    traffic = sum(record.bytes.down + record.bytes.up for record in records)
    return RunCost(len(records), traffic, sum(record.seconds.total for record in records))


def _refuse(runs: Sequence[ComparedRun], metric: str) -> None:
    known = sorted({name for run in runs for record in run.records for name in record.metrics})
    close = difflib.get_close_matches(metric, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"they have: {', '.join(known) or 'no metric yet'}"
    raise SettingsError(f"no round of these runs has the metric {metric!r}", hint)
