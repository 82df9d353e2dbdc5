"""Numbers and names as text: shares, bytes, large counts and durations, each with its unit; clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedsim.learning_tasks.metrics import LOSS, METRICS, find_kind, find_metric


def format_share(value: Any) -> str:
    """Write a fraction, such as an accuracy, with four digits; return "" if it is no number."""
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def format_metric_value(metric: str, value: Any) -> str:
    """Write the value of a record's metric: a share with four digits, any other with four significant."""
    found = find_metric(metric)
    return format_share(value) if found is not None and found.unit == "share" else format_number(value)


def format_metric(metric: str) -> str:
    """Write the name of a record's metric for people, e.g. `global_mean_iou` as `global mean IoU`."""
    kind = find_kind(metric)
    written = metric.replace(kind, METRICS.get(kind, LOSS).title, 1) if kind else metric
    return written.replace("_", " ").replace("worst10", "of the worst 10 % of clients")


def format_number(value: Any) -> str:
    """Write a number with four significant digits; return "" if it is no number."""
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def format_epsilon(method: Mapping[str, Any], *, with_delta: bool = False) -> str:
    """Write the privacy budget that a run has spent, of the field `method` of a record; "" without one."""
    said = method.get("privacy")
    if not isinstance(said, Mapping) or "clip" not in said:  # a budget of an algorithm's own noise
        return ""
    epsilon = "infinite" if said["epsilon"] is None else f"{said['epsilon']:.4g}"
    return f"{epsilon}, at delta {said['delta']:g}" if with_delta else epsilon


def format_bytes(count: int) -> str:
    """Write a number of bytes with a unit."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_count(count: int) -> str:
    """Write a large number with three digits and a unit: thousand, million, 10^9, ... as in FLOPs."""
    value = float(count)
    for unit in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:
            return f"{value:.3g}{unit and f' {unit}'}"
        value /= 1000
    return f"{value:.4g} E"


def format_duration(seconds: float) -> str:
    """Write a duration with a unit."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    for length, unit in ((3_600, "h"), (60, "min")):
        if seconds >= 10 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} s"


def label_client(client: int, names: Sequence[str]) -> str:
    """Return the label of a client in a picture of plotly, such as `hospital-03 (client 3)`.

    Args:
        client: its number.
        names: of the first clients; empty without names.
    """
    return f"{escape_label(names[client])} (client {client})" if client < len(names) else f"client {client}"


def escape_label(text: str) -> str:
    """Escape a name for a picture of plotly, which makes links and markup of tags otherwise."""
    return escape(text, quote=False)
