"""The choice of a run's final model by the validation split, beside the best model on the test set."""

from __future__ import annotations

from typing import Any

from fedsim.engine.model_selection import list_candidates
from jobs.store.records import RoundRecord


class FinalModel:
    """The choice among all scored rounds and deployed models; `add` takes one record after the other.

    A choice by the test set reports too high an accuracy, so the two choices have different names. Without a
    validation split there is no choice. Without a test set only validation chooses; the accuracy is None.
    """

    def __init__(self) -> None:
        self._best: dict[str, tuple[float, dict[str, Any]]] = {}

    def add(self, record: RoundRecord) -> None:
        """Compare the models of the next record with the best ones so far."""
        for model, validation, test in list_candidates(record.metrics):
            entry = {
                "round": record.round,
                "model": model,
                "accuracy": test,
                "validation_accuracy": validation,
            }
            for by, value in (("best_by_validation", validation), ("best_on_test", test)):
                if value is not None and value > self._best.get(by, (-1.0, {}))[0]:
                    self._best[by] = (value, entry)

    def document(self) -> dict[str, Any]:
        """Return the choices by name, `best_by_validation` and `best_on_test`; {} without validation."""
        return {by: entry for by, (_, entry) in self._best.items()}


__all__ = ["FinalModel"]
