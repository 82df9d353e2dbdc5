"""The best round of a run, and the choice by validation, from records."""

from __future__ import annotations

import pytest

from jobs.run.run_result import BestRound, FinalModel
from tests.api.service import a_round


@pytest.mark.parametrize(
    ("perplexities", "best"),
    [([9.0, 5.0, None], (2, 5.0)), ([5.0, None, 50.0], (1, 5.0)), ([None, 7.0, 8.0], (2, 7.0))],
)
def test_a_round_without_the_main_metric_is_not_the_best(
    perplexities: list[float | None], best: tuple[int, float]
) -> None:
    """Perplexity has no value where the model has diverged, and accuracy has one."""
    found = BestRound()
    for number, value in enumerate(perplexities, start=1):
        metrics = {"global_perplexity": value, "global_accuracy": 0.5}
        found.add(a_round(number).model_copy(update={"metrics": metrics}))
    assert found.document() == {"round": best[0], "global_perplexity": best[1]}


def test_values_of_two_metrics_are_not_compared() -> None:
    """`evaluation.metrics` may change at a resume; the chosen model is then chosen anew, too."""
    final = FinalModel()
    for number, (metric, value) in enumerate(
        [("auroc", 0.97), ("accuracy", 0.8), ("accuracy", 0.7)], start=1
    ):
        metrics = {f"global_{metric}": value, f"global_validation_{metric}": value}
        final.add(a_round(number).model_copy(update={"metrics": metrics}))
    assert final.document()["best_by_validation"]["round"] == 2
