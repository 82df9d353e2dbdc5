"""The journal of a table: one JSON line for every finished run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fedsim.learning_tasks.metrics import is_lower_better

T = TypeVar("T")

TAIL = 10
"""Of how many last rounds the tail is the mean, as far as they were scored."""

Figure: TypeAlias = Annotated[float, BeforeValidator(lambda said: math.nan if said is None else said)]
"""A number of a run that may have diverged: JSON has no NaN, and a line says null for it."""


CONVERGED = 0.01
"""How far below its tail a run may be where it counts as converged: a point of accuracy."""


class Scored(BaseModel):
    """How one metric did in a run.

    Attributes:
        final: in the last round.
        best: the round where it was best, and its value there.
        tail: its mean over the last 10 rounds, as far as they were scored.
        curve: by round.
    """

    model_config = ConfigDict(frozen=True)

    final: Figure
    best: dict[str, Figure]
    tail: Figure
    curve: dict[int, Figure]


class Spent(BaseModel):
    """What a run has cost so far.

    Attributes:
        bytes: simulated traffic, down and up.
        processor_seconds: of the run's process, which a busy machine hardly changes; None for several.
        simulated_seconds: of a run with `devices`; None for others, and in lines that were written before.
        joules: energy of the clients of such a run, in the same way.
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
        labels: the cell when it was run, for people; the key is what counts.
        seed: of the run.
        rounds: that were run.
        final: the last round's metrics.
        best: the round with the best metric of the table, and its value.
        tail: mean of that metric over the last 10 rounds, as far as they were scored.
        curve: that metric by round.
        bytes: simulated traffic of all rounds, down and up.
        cost: updates and flops of all rounds' training, tuning_updates and tuning_flops of fine-tuning; {} in
            lines that were written before these were counted.
        seconds: of the rounds, by the clock.
        spent: bytes and seconds from the start to the end of a round, for each point of the curve; {} in
            lines that were written before these were kept.
        others: how other metrics did that the table shows; {} in lines that were written before.
        clients: the accuracy of each client's own model after the last round, from worst to best; empty where
            nobody's was scored, and in lines that were written before these were kept.
        chosen: the round of the model that is best on the validation set, and its accuracy on the test set;
            {} without either set, and in lines that were written before this was looked for.
        chosen_model: which of the deployed models that is; "" where nothing was chosen, and in lines that
            were written before this was kept.
        method: the numbers that the method says of its last round; {} where it says none, and in lines that
            were written before these were kept.
        digest: of the last server state.
        code: the version of the code.
        device: the name of the processor or GPU that it was made on; "cpu" in lines that were written before.
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
    spent: dict[int, Spent] = {}
    others: dict[str, Scored] = {}
    clients: tuple[float, ...] = ()
    chosen: dict[str, float] = {}
    chosen_model: str = ""
    method: dict[str, Figure] = {}
    digest: str
    code: str
    device: str = "cpu"

    def shown(self, what: str, metric: str) -> float | None:
        """The figure for a table; None if unknown.

        Args:
            what: of the `final` round, of the `best`, of the `chosen` one; the `tail`'s mean; the `swing` or
                the `fall`.
            metric: of the table.
        """
        if what == "chosen":
            return self.chosen.get("value")
        if what == "swing":
            return swing(self.curve)
        if what == "fall":
            return fall(self.curve)
        return {"final": self.final[metric], "best": self.best["value"], "tail": self.tail}[what]

    def find_converged(self) -> int | None:
        """The first point of the curve that is at most a point of accuracy below the tail; None for NaN."""
        goal = self.tail - CONVERGED
        return next((number for number, score in sorted(self.curve.items()) if score >= goal), None)

    def spent_to_converge(self, what: str) -> float | None:
        """What the run has spent until it converged; None if unknown, NaN if it diverged.

        Args:
            what: `rounds`, or a figure of `Spent`.
        """
        number = self.find_converged()
        return math.nan if number is None else self._read_spent(number, what)

    def spent_to_target(self, target: float | None, what: str) -> float | None:
        """What the run has spent when its curve first comes up to a target; None if unknown.

        Args:
            target: a value of the metric, NaN returned if the run never has it; None for the end of the run.
            what: `rounds`, or a figure of `Spent`.
        """
        if target is None:
            return self._read_spent(max(self.curve), what)
        number = next((number for number, score in sorted(self.curve.items()) if score >= target), None)
        return math.nan if number is None else self._read_spent(number, what)

    def _read_spent(self, number: int, what: str) -> float | None:
        if what == "rounds":
            return number
        return getattr(self.spent.get(number), what, None)

    def seen(self, name: str, metric: str) -> Entry:
        """The same run with another metric, which `others` has, in the place of the table's."""
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

    def taken(self, labels: dict[str, str], every: int) -> Entry:
        """The same run for another table: its labels there, and of the curves the points that it keeps."""
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

    def other(self, name: str) -> float | None:
        """Another figure of the run: of its last round, or summed over all; None if unknown."""
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
        """All finished runs by key; a line that was cut off by a crash does not count."""
        entries = (Entry.model_validate(line) for line in read_lines(self.file))
        return {entry.key: entry for entry in entries}

    def append(self, entry: Entry) -> None:
        """Write one run down; it is on the disk when this returns."""
        write_line(self.file, entry.model_dump_json())


def read_lines(file: Path) -> Iterator[Any]:
    """What the lines of a file say; none where there is no file, and a line that was cut off is left out."""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else []:
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def write_line(file: Path, line: str) -> None:
    """Write one line behind the others, on one of its own if the last was cut off; it is on the disk then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    broken = file.is_file() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as opened:
        opened.write(("\n" if broken else "") + line + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def swing(curve: Mapping[int, float]) -> float | None:
    """The mean change between neighbours, up or down, over the second half of a curve; None for a point."""
    late = late_changes(curve)
    return fmean(map(abs, late)) if late else None


def fall(curve: Mapping[int, float]) -> float | None:
    """The same of the falls alone, a rise counting 0, so that a curve that only rises has none."""
    late = late_changes(curve)
    return fmean(max(0.0, -change) for change in late) if late else None


def late_changes(curve: Mapping[int, float]) -> list[float]:
    """From each point to the next over the second half of a curve; [] for a point."""
    changes = [after - before for (_, before), (_, after) in pairwise(sorted(curve.items()))]
    return changes[len(changes) // 2 :]


def summarize_scores(metric: str, scores: Mapping[int, float], every: int) -> Scored:
    """How a metric did.

    Args:
        metric: its name, which tells whether higher is better.
        scores: by round, at least one.
        every: rounds between the points of the curve that is kept; the first and the last are kept as well.
    """
    last, sign = max(scores), -1 if is_lower_better(metric) else 1
    best = max(scores, key=lambda number: -math.inf if math.isnan(scores[number]) else sign * scores[number])
    return Scored(
        final=scores[last],
        best={"round": best, "value": scores[best]},
        tail=round(fmean(score for number, score in scores.items() if number > last - TAIL), 6),
        curve=thin_curve(scores, every),
    )


def thin_curve(curve: Mapping[int, T], every: int) -> dict[int, T]:
    """The points of a curve after every so many rounds, the first and the last as well."""
    ends = (min(curve), max(curve)) if curve else ()
    return {number: score for number, score in curve.items() if number % every == 0 or number in ends}


def numbers(said: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are numbers, as they are kept; NaN and infinity have no word in a journal."""
    plain = {name: value for name, value in said.items() if type(value) in (int, float)}
    return round_metrics((name, value) for name, value in plain.items() if math.isfinite(value))


def round_metrics(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Metrics as they are kept: six digits are finer than any difference that matters."""
    return {name: round(value, 6) for name, value in values}
