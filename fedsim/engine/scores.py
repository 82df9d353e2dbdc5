"""Add scores of deployed models, and turn them into metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedsim.core import Score


def sum_scores(parts: Iterable[Mapping[str, Score]]) -> dict[str, Score]:
    """Add the scores of several parts of the test set, in the given order (losses are floats)."""
    found: dict[str, Score] = {}
    for part in parts:
        for name, score in part.items():
            found[name] = add_scores(found.get(name, Score(0, 0.0, 0)), score)
    return found


def add_scores(first: Score, second: Score) -> Score:
    """Add two scores."""
    return Score(first.correct + second.correct, first.loss + second.loss, first.examples + second.examples)


def scores_to_metrics(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return `NAME_accuracy` (0 to 1) and `NAME_loss` (mean cross-entropy, nats) of every model."""
    found: dict[str, float] = {}
    for name, score in scores.items():
        found[f"{name}_accuracy"] = score.correct / max(score.examples, 1)
        found[f"{name}_loss"] = score.loss / max(score.examples, 1)
    return found
