"""Figures of a run for its report: groups of curves over the rounds."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from api.reports.formatting import format_metric
from api.reports.method_curves import find_method_changes, find_method_curves, format_name
from fedsim.base.costs import Cost
from fedsim.learning_tasks.metrics import LOSS, METRICS, find_metric, is_lower_better
from jobs.store.records import RoundRecord

COLOURS = ("#1a5fb4", "#b3480b", "#1c7c54", "#8a3fa0", "#a51d5b", "#6b6100", "#0b7285", "#5c4b3f")

DPI = 300
WIDTH, HEIGHT = 3.5, 2.4
"""Inches: one column of a paper in two columns."""

PHASES = {
    "train": "training",
    "evaluate": "evaluation",
    "personal": "personal evaluation",
    "server": "server update",
    "learn": "server training",
    "survey": "client survey",
}
NOT_DRAWN = re.compile(r"_std(_|$)|_before$")
"""Metrics without a curve: standard deviations, and scores before fine-tuning."""

LEAST_SECONDS = 0.0005
"""Seconds. A phase that is always shorter did nothing: the time is that of reading the clock."""

MOST_POINTS = 60
"""A longer curve is drawn without markers."""

PASSING_HEIGHT = 0.04
"""Height of the tick for a change that does not last, as a share of the picture."""


class ReportCurve(NamedTuple):
    """One curve: its name, and the coordinates of its points."""

    name: str
    x: list[float]
    y: list[float]


class ReportFigure(NamedTuple):
    """One picture.

    Attributes:
        name: for files, such as `accuracy-by-traffic`.
        title: title for people.
        x_title: title of the horizontal axis.
        y_title: title of the vertical axis.
        curves: at least one.
        changes: changes that the algorithm reports, as (place on the horizontal axis, text, lasting part).
        bands: lower and upper edge of a band around each curve, of each point; without bands empty.
    """

    name: str
    title: str
    x_title: str
    y_title: str
    curves: list[ReportCurve]
    changes: list[tuple[float, str, str]] = []  # noqa: RUF012
    bands: list[list[tuple[float, float]]] = []  # noqa: RUF012


class _Axis(NamedTuple):
    """A horizontal axis: the ending of files, the title, the place of every record, the changes on it."""

    ending: str
    words: str
    title: str
    places: list[float]
    changes: list[tuple[float, str, str]]


def make_figures(records: Sequence[RoundRecord]) -> list[ReportFigure]:
    """Make all figures of a run: metrics, values that the algorithm reports, cost, seconds of the phases."""
    rounds = [float(record.round) for record in records]
    axes = _make_axes(records, rounds)
    by_round = axes[0].changes
    found = [
        *_make_score_figures(records, axes),
        *_make_method_figures(records, rounds, by_round),
        ReportFigure(
            "updates",
            "Parameter updates, cumulative",
            "round",
            "parameter updates",
            list(_make_cost_curves(records, rounds, "updates")),
            by_round,
        ),
        ReportFigure(
            "flops",
            "FLOPs, cumulative",
            "round",
            "FLOPs",
            list(_make_cost_curves(records, rounds, "flops")),
            by_round,
        ),
        ReportFigure("seconds", "Seconds per round", "round", "seconds", list(_phases(records, rounds))),
    ]
    return [figure for figure in found if figure.curves]


def _make_axes(records: Sequence[RoundRecord], rounds: list[float]) -> list[_Axis]:
    """Make the axes of rounds, traffic and computing time; with devices also of simulated time and joules."""
    sent = list(accumulate((record.bytes.down + record.bytes.up) / 1e6 for record in records))
    spent = list(accumulate(record.seconds.total for record in records))
    changes = find_method_changes(records)
    readings = [record.clock for record in records if record.clock]
    simulated = [
        ("-by-clock", "simulated time", "simulated time (s)", [reading.total for reading in readings]),
        ("-by-joules", "energy", "energy (J)", list(accumulate(reading.joules for reading in readings))),
    ]
    return [
        _Axis(ending, words, title, places, [(places[at], text, lasting) for at, text, lasting in changes])
        for ending, words, title, places in (
            ("", "round", "round", rounds),
            ("-by-traffic", "simulated traffic", "traffic, down and up (MB)", sent),
            ("-by-seconds", "computing time", "computing time (s)", spent),
            *(simulated if readings and len(readings) == len(records) else ()),
        )
    ]


def _make_score_figures(records: Sequence[RoundRecord], axes: Sequence[_Axis]) -> Iterator[ReportFigure]:
    """Make the figures of the main metric along every axis, of the loss and of all other metrics by round."""
    by_round, *others = axes
    kinds = [kind for kind in METRICS if _metrics(records, by_round.places, kind)] or ["accuracy"]
    main, *rest = kinds
    yield _make_score_figure(records, main, by_round)
    yield _make_score_figure(records, "loss", by_round)
    yield from (_make_score_figure(records, main, axis) for axis in others)
    yield from (_make_score_figure(records, kind, by_round) for kind in rest)


def _make_score_figure(records: Sequence[RoundRecord], kind: str, axis: _Axis) -> ReportFigure:
    metric = METRICS.get(kind, LOSS)
    title = f"{metric.title[0].upper()}{metric.title[1:]} by {axis.words}"
    is_reversed = kind != "loss" and not metric.higher_is_better
    return ReportFigure(
        kind.replace("_", "-") + axis.ending,
        f"{title} (lower is better)" if is_reversed else title,
        axis.title,
        describe_axis(kind),
        _metrics(records, axis.places, kind),
        axis.changes,
    )


def make_clients_figure(text: str) -> list[ReportFigure]:
    """Make the figure of the personal models, from worst to best.

    Args:
        text: content of `personal.csv`; empty without a personal evaluation.
    """
    rows = [row for row in csv.DictReader(io.StringIO(text)) if int(row["tests"])]
    if not rows:
        return []
    kind = next((name for name in METRICS if ("correct" if name == "accuracy" else name) in rows[0]), "loss")
    read = [_read_client(row, kind) for row in rows]
    # A client with one class has no AUROC.
    values = sorted(filter(math.isfinite, read), reverse=is_lower_better(kind))
    if not values:
        return []
    places = [float(place) for place in range(1, len(values) + 1)]
    curve = ReportCurve("personal model", places, values)
    return [
        ReportFigure(
            "clients",
            "Personal models of the clients, from worst to best",
            "clients, sorted",
            describe_axis(kind),
            [curve],
        )
    ]


def _read_client(row: Mapping[str, str], kind: str) -> float:
    return int(row["correct"]) / int(row["tests"]) if kind == "accuracy" else float(row[kind])


def describe_axis(kind: str) -> str:
    """Return the title of an axis: the metric, with its unit if it is no share."""
    metric = METRICS.get(kind, LOSS)
    return metric.title if metric.unit in ("", "share", "nats") else f"{metric.title} ({metric.unit})"


def _make_method_figures(
    records: Sequence[RoundRecord], rounds: Sequence[float], changes: list[tuple[float, str, str]]
) -> Iterator[ReportFigure]:
    """Make the figures of values that the algorithm reports, and of metrics other than accuracy and loss."""
    for name, lines in find_method_curves(records).items():
        words = format_name(name)
        curves = [_make_method_curve(line, rounds, values) for line, values in lines]
        yield ReportFigure(_file("method", name), f"Algorithm: {words}", "round", words, curves, changes)
    metrics = dict.fromkeys(name for record in records for name in record.metrics)
    for name in metrics:
        if find_metric(name) is None and not NOT_DRAWN.search(name):
            curve = _curve(records, rounds, name)
            if len(set(curve.y)) > 1:
                yield ReportFigure(_file("metric", name), curve.name, "round", curve.name, [curve], changes)


def _file(kind: str, name: str) -> str:
    return f"{kind}-" + re.sub(r"[^a-z0-9]+", "-", name.lower())


def _make_method_curve(name: str, rounds: Sequence[float], values: Sequence[float | None]) -> ReportCurve:
    points = [(x, float(y)) for x, y in zip(rounds, values, strict=True) if y is not None]
    return ReportCurve(name, [x for x, _ in points], [y for _, y in points])


def _metrics(records: Sequence[RoundRecord], x: Sequence[float], kind: str) -> list[ReportCurve]:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    metric = METRICS.get(kind, LOSS)
    wanted = [name for name in names if find_metric(name) == metric and not NOT_DRAWN.search(name)]
    drawn = (_curve(records, x, name) for name in wanted)
    return [curve for curve in drawn if curve.x]


def _curve(records: Sequence[RoundRecord], x: Sequence[float], metric: str) -> ReportCurve:
    points = [
        (place, float(value))
        for place, record in zip(x, records, strict=True)
        if isinstance(value := record.metrics.get(metric), int | float)
    ]
    return ReportCurve(format_metric(metric), [point[0] for point in points], [point[1] for point in points])


def _make_cost_curves(records: Sequence[RoundRecord], x: list[float], part: str) -> Iterator[ReportCurve]:
    """Make the cumulative cost of local training; with fine-tuning a second curve adds its cost."""
    if all(record.cost is None for record in records):
        return
    spent = [record.cost or Cost() for record in records]
    training = [float(getattr(cost, part)) for cost in spent]
    tuning = [float(getattr(cost, f"tuning_{part}")) for cost in spent]
    yield ReportCurve("training", x, list(accumulate(training)))
    if any(tuning):
        yield ReportCurve("with fine-tuning", x, list(accumulate(map(add, training, tuning))))


def _phases(records: Sequence[RoundRecord], x: list[float]) -> Iterator[ReportCurve]:
    for phase, name in PHASES.items():
        values = [float(getattr(record.seconds, phase)) for record in records]
        if max(values, default=0) > LEAST_SECONDS:
            yield ReportCurve(name, x, values)
