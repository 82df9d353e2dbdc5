"""RunResult: the outcome of a run whose records and models stay in memory; its best round and model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.evaluation.model_selection import ChosenModel, list_candidates
from fedsim.engine.stopping import RunEnd
from fedsim.learning_tasks.metrics import is_lower_better, main_metric_names
from jobs.spec import JobSpec
from jobs.store.records import RoundRecord, RunTotals


class FinalModel:
    """The choice among all scored rounds and deployed models; `add` takes one record after the other.

    A choice by the test set reports too good a value, so the two choices have different names. Without a
    validation split there is no choice. Without a test set only validation chooses; the test value is None.
    """

    def __init__(self) -> None:
        self._best: dict[str, tuple[str, float, dict[str, Any]]] = {}

    def add(self, record: RoundRecord) -> None:
        """Compare the models of the next record with the best ones so far."""
        for found in list_candidates(record.metrics):
            entry = {
                "round": record.round,
                "model": found.model,
                found.metric: found.test,
                f"validation_{found.metric}": found.validation,
            }
            for by, value in (("best_by_validation", found.validation), ("best_on_test", found.test)):
                if value is None:
                    continue
                metric, best, _ = self._best.get(by, ("", value, entry))
                # Values of two metrics cannot be compared: `evaluation.metrics` may change at a resume.
                if metric != found.metric or found.is_better(value, best):
                    self._best[by] = (found.metric, value, entry)

    def document(self) -> dict[str, Any]:
        """Return the choices by name, `best_by_validation` and `best_on_test`; {} without validation."""
        return {by: entry for by, (_, _, entry) in self._best.items()}


class BestRound:
    """The round with the best global model on the test set; `add` takes one record after the other."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._found: dict[str, Any] = {}

    def add(self, record: RoundRecord) -> None:
        """Compare the main metric of the next record with the best one so far."""
        # Where the model has diverged its value is null, and another metric would take its place.
        if self._name not in record.metrics:
            self._name = next((name for name in main_metric_names() if name in record.metrics), self._name)
        if self._name is None or not self._name.startswith("global_") or "_validation_" in self._name:
            return
        name, value = self._name, record.metrics.get(self._name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return
        sign = -1 if is_lower_better(name) else 1
        if name not in self._found or sign * value > sign * self._found[name]:
            self._found = {"round": record.round, name: value}

    def document(self) -> dict[str, Any]:
        """Return the round and the value by the name of its metric; {} if no round was scored."""
        return self._found


class RunSummary:
    """The result of a run, computed from its records; `add` takes one record after the other.

    Attributes:
        final: the metrics of the round of the result.
    """

    def __init__(self) -> None:
        self.final: dict[str, Any] = {}
        self._best, self._chosen, self._totals = BestRound(), FinalModel(), RunTotals()
        self._end: RunEnd | None = None

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> RunSummary:
        """Return the result of a run with these records."""
        summary = cls()
        for record in records:
            summary.add(record)
        return summary

    def add(self, record: RoundRecord) -> None:
        """Add the next record."""
        self._end = record.end
        self.final = dict(record.end.metrics if record.end else record.metrics)
        self._best.add(record)
        self._chosen.add(record)
        self._totals = self._totals.add(record)

    def document(self) -> dict[str, Any]:
        """Return the result as plain data: final, best, the choice by validation, totals, and the end."""
        total = self._totals
        totals = {
            "rounds": total.rounds,
            "seconds": round(total.seconds, 3),
            "bytes": {"down": total.down, "up": total.up, "personal": total.personal},
            "cost": asdict(total.cost),
        }
        choices = {"best": self._best.document(), **self._chosen.document()}
        found = {"final": self.final, **choices, "totals": totals}
        return found | ({"end": asdict(self._end)} if self._end else {})


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        spec: of the run, with the SHA-256 of its initial weights.
        records: one per round.
        model: the global model of the round of the result, as NumPy arrays by parameter name.
        personal: the last scores of the clients' personal models; None if they were never scored.
        chosen_model: the model that validation chose, with its round and name; None without validation.
        notes: the metadata of the model files; see `make_model_notes`.
    """

    spec: JobSpec
    records: list[RoundRecord] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    personal: PersonalScores | None = None
    chosen_model: ChosenModel | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def end(self) -> RunEnd | None:
        """Return why the run ended; None without a stop rule."""
        return self.records[-1].end if self.records else None

    @property
    def round(self) -> int:
        """Return the round of the result: the last one, unless `stop.patience` chose an earlier one."""
        return self.end.result_round if self.end else len(self.records)

    @property
    def final(self) -> dict[str, Any]:
        """Return the metrics of the round of the result."""
        return RunSummary.of(self.records).final

    def document(self) -> dict[str, Any]:
        """Return the result as plain data; see `RunSummary`."""
        return RunSummary.of(self.records).document()
