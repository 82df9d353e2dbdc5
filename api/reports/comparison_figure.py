"""The figure of a comparison: the mean curve of each group, with a band of one standard deviation."""

from __future__ import annotations

from api.comparison.records import Comparison
from api.reports.figures import ReportCurve, ReportFigure, describe_axis
from api.reports.formatting import format_metric
from fedsim.learning_tasks.metrics import find_kind


def make_comparison_figure(found: Comparison) -> ReportFigure | None:
    """Make the figure of a comparison by rounds; None if no group has a score."""
    groups = [group for group in found.counted if group.curve.rounds]
    if not groups:
        return None
    kind = find_kind(found.metric)
    metric = format_metric(found.metric)
    direction = "lower" if found.lower_is_better else "higher"
    bands = [
        [(mean - spread, mean + spread) for mean, spread in zip(curve.mean, curve.deviation, strict=False)]
        for curve in (group.curve for group in groups)
    ]
    return ReportFigure(
        "comparison",
        f"{metric[0].upper()}{metric[1:]} by round, mean ± standard deviation ({direction} is better)",
        "round",
        describe_axis(kind) if kind else metric,
        [
            ReportCurve(group.title, [float(each) for each in group.curve.rounds], group.curve.mean)
            for group in groups
        ],
        [],
        bands,
    )
