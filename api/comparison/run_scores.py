"""The scores of one run: its values of a metric, and the values that represent the run in a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedsim.learning_tasks.metrics import (
    find_kind,
    find_main_metric,
    find_metric,
    is_lower_better,
    main_metric_names,
)
from jobs.store.records import RoundRecord

METRIC_OF_UNSCORED_RUNS = "global_accuracy"


@dataclass(frozen=True)
class RoundScore:
    """A value of the metric, and its round."""

    round: int
    value: float


def find_common_metric(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the main metric that all runs have; without one, the main metric of the first run that has any.

    Args:
        metrics: the latest metrics of each run; `global_accuracy` if no run has any.
    """
    scored = [each for each in metrics if find_main_metric(each)]
    if not scored:  # runs that diverged at once have only the names of their metrics
        scored = [each for each in metrics if each]
    common = (name for name in main_metric_names() if scored and all(name in each for each in scored))
    first = (name for each in scored if (name := find_main_metric(each)))
    return next(common, None) or next(first, METRIC_OF_UNSCORED_RUNS)


def find_latest_metrics(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the last value of every metric; None for a metric that never had a finite value."""
    found: dict[str, Any] = {}
    for record in records:
        found |= {
            name: value for name, value in record.metrics.items() if value is not None or name not in found
        }
    return found


def list_scores(records: Sequence[RoundRecord], metric: str) -> Iterator[RoundScore]:
    """Yield the values of the metric, with their rounds."""
    for record in records:
        value = record.metrics.get(metric)
        if isinstance(value, int | float):
            yield RoundScore(record.round, float(value))


def find_final_score(records: Sequence[RoundRecord], metric: str) -> RoundScore | None:
    """Return the score in the round of the result, by default of the last evaluated round.

    None if no round was evaluated, or if the value of that round is not finite: an earlier value would hide
    that the run diverged.
    """
    last = _find_final_record(records, metric)
    return next(list_scores([last], metric), None) if last else None


def ends_not_finite(records: Sequence[RoundRecord], metric: str) -> bool:
    """Return whether the metric is not finite in the round of the result, as after divergence."""
    last = _find_final_record(records, metric)
    return last is not None and last.metrics[metric] is None


def _find_final_record(records: Sequence[RoundRecord], metric: str) -> RoundRecord | None:
    """Return the record of the result, by default the last one with the metric."""
    end = records[-1].end if records else None
    evaluated = [record for record in records if metric in record.metrics]
    chosen = (record for record in evaluated if end is not None and record.round == end.result_round)
    return next(chosen, evaluated[-1] if evaluated else None)


def find_best_score(scores: Iterable[RoundScore], metric: str) -> RoundScore | None:
    """Return the best value and its round, the first of equals; None without values."""
    sign = -1.0 if is_lower_better(metric) else 1.0
    return max(scores, key=lambda score: sign * score.value, default=None)


def average_last_scores(scores: Sequence[RoundScore], final: RoundScore | None, last: int) -> float | None:
    """Return the mean of the last scores up to the final one; None without scores.

    Args:
        scores: of a run, in order.
        final: the score of the result; later scores are left out.
        last: the number of scores; a run with fewer gives the mean of all of them.
    """
    if final is None:
        return None
    return fmean([score.value for score in scores if score.round <= final.round][-last:])


def find_validated_score(records: Sequence[RoundRecord], metric: str) -> RoundScore | None:
    """Return the score of the round that was best on the validation set; None without such a set.

    Args:
        records: of the run, in order.
        metric: on the test set, such as `global_accuracy` or `personal_accuracy_mean`. Rounds are chosen by
            the value of the same models on the validation set: `global_validation_accuracy`.
    """
    kind = find_kind(metric)
    if kind is None or find_metric(metric) is None:
        return None
    models, _, rest = metric.rpartition(f"_{kind}")
    chooser = f"{models}_validation_{kind}{rest}"
    tested = {score.round: score for score in list_scores(records, metric)}
    best = find_best_score((each for each in list_scores(records, chooser) if each.round in tested), chooser)
    return None if best is None else tested[best.round]
