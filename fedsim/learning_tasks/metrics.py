"""The metrics by name, with unit and direction; the page has the same table (`api/page/metrics.js`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias


class Metric(NamedTuple):
    """A metric.

    Attributes:
        title: for people.
        unit: "" for a number without a unit; "share" is from 0 to 1.
        higher_is_better: the direction.
    """

    title: str
    unit: str
    higher_is_better: bool


MetricName: TypeAlias = Literal["perplexity", "mean_iou", "rmse", "accuracy", "f1", "auroc", "mae", "r2"]

METRICS: Mapping[str, Metric] = {
    "perplexity": Metric("perplexity", "", False),
    "mean_iou": Metric("mean IoU", "share", True),
    "rmse": Metric("RMSE", "unit of the target", False),
    "accuracy": Metric("accuracy", "share", True),
    "f1": Metric("macro F1", "share", True),
    "auroc": Metric("AUROC", "share", True),
    "mae": Metric("MAE", "unit of the target", False),
    "r2": Metric("R2", "", True),
}
"""In order: the first of these that a record has represents the run (`find_main_metric`)."""

LOSS = Metric("loss", "nats", False)

_KIND = re.compile(rf"(?:^|_)({'|'.join([*METRICS, 'loss'])})(?=_|$)")
_SPREAD = re.compile(r"_std(_|$)")


def find_kind(name: str) -> str | None:
    """Return the name of the metric inside the name of a record's value; None for a value that is no score.

    Example:
        >>> find_kind("personal_mean_iou_worst10")
        'mean_iou'
    """
    found = _KIND.search(name)
    return found[1] if found else None


def find_metric(name: str) -> Metric | None:
    """Return the metric of a value in a record; None for a value that is no score, or a standard deviation.

    Args:
        name: such as `global_rmse`, `personal_accuracy_worst10` or `train_loss`.

    Example:
        >>> find_metric("global_validation_rmse").higher_is_better
        False
        >>> find_metric("personal_accuracy_std") is None
        True
    """
    kind = find_kind(name)
    return None if kind is None or _SPREAD.search(name) else METRICS.get(kind, LOSS)


def is_lower_better(name: str) -> bool:
    """Return whether a smaller value of this metric of a record is the better one.

    Example:
        >>> is_lower_better("global_perplexity"), is_lower_better("global_accuracy")
        (True, False)
    """
    found = find_metric(name)
    return found is not None and not found.higher_is_better


def main_metric_names() -> tuple[str, ...]:
    """Return the names of records' metrics that may represent a run, in order of preference.

    A run with only personal models has no metric of a global model; a run without test examples has metrics
    on the validation set alone.
    """
    families = ("global", "personal", "global_validation", "personal_validation")
    return tuple(f"{family}_{name}" for family in families for name in METRICS)


def find_main_metric(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the metric that represents a run; None if it has none.

    Example:
        >>> find_main_metric({"global_loss": 0.4, "global_r2": 0.3, "global_rmse": 54.0})
        'global_rmse'
    """
    return next((name for name in main_metric_names() if isinstance(metrics.get(name), int | float)), None)
