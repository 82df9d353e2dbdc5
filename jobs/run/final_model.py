"""Which model a run ends with: by the validation split, and beside it the best one on the test set."""

from __future__ import annotations

from typing import Any

from fedsim.engine.model_selection import list_candidates
from jobs.store.records import RoundRecord


class FinalModel:
    """The choice among all scored rounds and deployed models, while records go by.

    A choice by the test set flatters, so each stands under its own name. Without a validation split there
    is no choice; without a test set there is that by validation alone, of a model whose accuracy is None.
    """

    def __init__(self) -> None:
        self._best: dict[str, tuple[float, dict[str, Any]]] = {}

    def add(self, record: RoundRecord) -> None:
        """Take the next record."""
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
        """Both choices, as far as there are such, by name; {} without a validation split."""
        return {by: entry for by, (_, entry) in self._best.items()}


__all__ = ["FinalModel"]
