"""The journal of a table: one JSON line for every finished run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fedsim.learning_tasks.metrics import is_lower_better
from jobs.json_lines import read_lines, write_line

T = TypeVar("T")

TAIL = 10
"""The tail is the mean of the scored rounds among this many last rounds."""

Figure: TypeAlias = Annotated[float, BeforeValidator(lambda said: math.nan if said is None else said)]
"""A number of a run that may have diverged. JSON has no NaN: the line of such a run has null."""

CONVERGED = 0.01
"""A run has converged when it is at most this far below its tail: one point of accuracy."""


class MetricSummary(BaseModel):
    """The course of one metric in a run.

    Attributes:
        final: the value in the last round.
        best: the best round, and the value there.
        tail: the mean of the scored rounds among the last 10.
        curve: the value by round.
    """

    model_config = ConfigDict(frozen=True)

    final: Figure
    best: dict[str, Figure]
    tail: Figure
    curve: dict[int, Figure]


class Spending(BaseModel):
    """The costs of a run from its start to the end of a round.

    Attributes:
        bytes: simulated traffic, down and up.
        processor_seconds: of the run's process, which a busy machine hardly changes; None for a run of
            several processes.
        simulated_seconds: of a run with `devices`; None for other runs, and in older lines.
        joules: energy of the clients of a run with `devices`; None for other runs, and in older lines.
    """

    model_config = ConfigDict(frozen=True)

    bytes: int
    processor_seconds: float | None = None
    simulated_seconds: float | None = None
    joules: float | None = None


class Entry(BaseModel):
    """One finished run.

    Attributes:
        key: fingerprint of the spec, seed included.
        labels: the cell of the run, for readers; a table finds its runs by the key.
        seed: of the run.
        rounds: number of rounds.
        final: the metrics of the round of the result, which is the last one without a stop rule.
        best: the round with the best value of the table's metric, and this value.
        tail: the mean of the table's metric over the scored rounds among the last 10.
        curve: the table's metric by round.
        bytes: simulated traffic of all rounds, down and up.
        cost: updates and flops of all rounds' training, tuning_updates and tuning_flops of fine-tuning.
        seconds: of the rounds, by the clock.
        spent: costs from the start to the end of a round, for each point of the curve.
        others: the other metrics that the table shows.
        clients: the accuracy of each client's own model after the last round, from worst to best; empty if no
            client's model was scored.
        chosen: the round of the model that is best on the validation set, and its accuracy on the test set;
            {} without either set.
        chosen_model: the name of this model among the deployed models; "" if none was chosen.
        method: the numbers in the method's own record of the last round.
        digest: of the last server state.
        code: the version of the code.
        device: the name of the processor or GPU; "cpu" in older lines.

    Lines of older versions lack some attributes, which are then empty.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    labels: dict[str, str]
    seed: int
    rounds: int
    final: dict[str, Figure]
    best: dict[str, Figure]
    tail: Figure
    curve: dict[int, Figure]
    bytes: dict[str, int]
    cost: dict[str, int] = {}
    seconds: float
    spent: dict[int, Spending] = {}
    others: dict[str, MetricSummary] = {}
    clients: tuple[float, ...] = ()
    chosen: dict[str, float] = {}
    chosen_model: str = ""
    method: dict[str, Figure] = {}
    digest: str
    code: str
    device: str = "cpu"

    @property
    def has_diverged(self) -> bool:
        """Whether a loss of the last round is not finite; the accuracy of such a model is 0 and constant."""
        return any(name.endswith("loss") and not math.isfinite(value) for name, value in self.final.items())

    def read_figure(self, what: str, metric: str) -> float | None:
        """Return a figure for a table; None if unknown, NaN for the swing or fall of a run that diverged.

        Args:
            what: the value of the `final`, the `best` or the `chosen` round, the `tail`, the `swing` or the
                `fall`.
            metric: of the table.
        """
        if what == "chosen":
            return self.chosen.get("value")
        if what in ("swing", "fall"):
            measure = measure_swing if what == "swing" else measure_fall
            return math.nan if self.has_diverged else measure(self.curve)
        return {"final": self.final[metric], "best": self.best["value"], "tail": self.tail}[what]

    def find_converged(self) -> int | None:
        """Return the first round that is at most a point of accuracy below the tail; None if it diverged."""
        return None if self.has_diverged else find_round(self.curve, self.tail - CONVERGED)

    def spent_to_converge(self, what: str) -> float | None:
        """Return the rounds or costs until the run converged; None if unknown, NaN if it diverged.

        Args:
            what: `rounds`, or an attribute of `Spending`.
        """
        number = self.find_converged()
        return math.nan if number is None else self._read_spent(number, what)

    def spent_to_target(self, target: float | None, what: str) -> float | None:
        """Return the rounds or costs until the curve reaches a target; None if unknown, NaN if it never does.

        Args:
            target: a value of the metric; None for the end of the run.
            what: `rounds`, or an attribute of `Spending`.
        """
        if target is None:
            return self._read_spent(max(self.curve), what)
        number = find_round(self.curve, target)
        return math.nan if number is None else self._read_spent(number, what)

    def _read_spent(self, number: int, what: str) -> float | None:
        if what == "rounds":
            return number
        return getattr(self.spent.get(number), what, None)

    def with_metric(self, name: str, metric: str) -> Entry:
        """Return the entry with another metric, one of `others`, in place of the table's metric."""
        other = self.others[name]
        final = {**self.final, metric: other.final}
        return self.model_copy(
            update={
                "final": final,
                "best": other.best,
                "tail": other.tail,
                "curve": other.curve,
                "chosen": {},
                "chosen_model": "",
            }
        )

    def copy_for_table(self, labels: dict[str, str], every: int) -> Entry:
        """Return the entry for another table: with its labels, and the points that its curves keep."""
        others = {
            name: other.model_copy(update={"curve": thin_curve(other.curve, every)})
            for name, other in self.others.items()
        }
        return self.model_copy(
            update={
                "labels": labels,
                "curve": thin_curve(self.curve, every),
                "spent": thin_curve(self.spent, every),
                "others": others,
            }
        )

    def read_total(self, name: str) -> float | None:
        """Return a metric of the last round, or bytes or costs of all rounds; None if unknown."""
        known: dict[str, float] = {**self.final, **self.bytes, **self.cost}
        return known.get(name)


class Journal:
    """Finished runs in a file that only grows.

    Args:
        folder: where the journals are.
        name: of the table.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.jsonl"

    def read(self) -> dict[str, Entry]:
        """Return all finished runs by key; a line that a crash cut off does not count."""
        entries = (Entry.model_validate(line) for line in read_lines(self.file))
        return {entry.key: entry for entry in entries}

    def append(self, entry: Entry) -> None:
        """Append one run, and wait until it is on the disk."""
        write_line(self.file, entry.model_dump_json())


def find_round(curve: Mapping[int, float], goal: float) -> int | None:
    """Return the first round whose value is at least the goal; None if there is none."""
    return next((number for number, value in sorted(curve.items()) if value >= goal), None)


def measure_swing(curve: Mapping[int, float]) -> float | None:
    """Return the mean change, up or down, between neighbours in the second half; None for one point."""
    late = _list_late_changes(curve)
    return fmean(map(abs, late)) if late else None


def measure_fall(curve: Mapping[int, float]) -> float | None:
    """Return the mean fall between neighbours in the second half; a rise counts as 0."""
    late = _list_late_changes(curve)
    return fmean(max(0.0, -change) for change in late) if late else None


def _list_late_changes(curve: Mapping[int, float]) -> list[float]:
    """Return the change from each point to the next in the second half of a curve; [] for one point."""
    changes = [after - before for (_, before), (_, after) in pairwise(sorted(curve.items()))]
    return changes[len(changes) // 2 :]


def summarise_metric(metric: str, scores: Mapping[int, float], every: int) -> MetricSummary:
    """Summarise the course of a metric in a run.

    Args:
        metric: its name, which tells whether higher is better.
        scores: the value by round, at least one.
        every: rounds between the points of the curve that are kept; see `thin_curve`.
    """
    last, sign = max(scores), -1 if is_lower_better(metric) else 1
    best = max(scores, key=lambda number: -math.inf if math.isnan(scores[number]) else sign * scores[number])
    return MetricSummary(
        final=scores[last],
        best={"round": best, "value": scores[best]},
        tail=round(fmean(score for number, score in scores.items() if number > last - TAIL), 6),
        curve=thin_curve(scores, every),
    )


def thin_curve(curve: Mapping[int, T], every: int) -> dict[int, T]:
    """Return the points of a curve whose round is a multiple of `every`, and the first and the last point."""
    ends = (min(curve), max(curve)) if curve else ()
    return {number: score for number, score in curve.items() if number % every == 0 or number in ends}


def select_numbers(said: Mapping[str, Any]) -> dict[str, float]:
    """Select the finite numbers, rounded; JSON has no NaN and no infinity."""
    plain = {name: value for name, value in said.items() if type(value) in (int, float)}
    return round_metrics((name, value) for name, value in plain.items() if math.isfinite(value))


def round_metrics(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Round metrics for a journal: six digits are finer than any difference that matters."""
    return {name: round(value, 6) for name, value in values}
