"""Figures of a run for its report: groups of curves over the rounds."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from api.reports.method_curves import find_method_changes, find_method_curves, format_name
from jobs.store.records import RoundRecord, total_cost

ACCURACY, LOSS = "accuracy", "loss"
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
    """

    name: str
    title: str
    x_title: str
    y_title: str
    curves: list[ReportCurve]
    changes: list[tuple[float, str, str]] = []  # noqa: RUF012


def make_figures(records: Sequence[RoundRecord]) -> list[ReportFigure]:
    """Make all figures of a run: metrics, values that the algorithm reports, cost, seconds of the phases."""
    rounds = [float(record.round) for record in records]
    sent = list(accumulate((record.bytes.down + record.bytes.up) / 1e6 for record in records))
    changes = find_method_changes(records)
    by_round = [(rounds[place], text, lasting) for place, text, lasting in changes]
    by_traffic = [(sent[place], text, lasting) for place, text, lasting in changes]
    spent = list(accumulate(record.seconds.total for record in records))
    by_seconds = [(spent[place], text, lasting) for place, text, lasting in changes]
    scores = _metrics(records, rounds, ACCURACY)
    found = [
        ReportFigure("accuracy", "Accuracy by round", "round", "accuracy", scores, by_round),
        ReportFigure("loss", "Loss by round", "round", "loss", _metrics(records, rounds, LOSS), by_round),
        ReportFigure(
            "accuracy-by-traffic",
            "Accuracy by simulated traffic",
            "traffic, down and up (MB)",
            "accuracy",
            _metrics(records, sent, ACCURACY),
            by_traffic,
        ),
        ReportFigure(
            "accuracy-by-seconds",
            "Accuracy by computing time",
            "computing time (s)",
            "accuracy",
            _metrics(records, spent, ACCURACY),
            by_seconds,
        ),
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


def make_clients_figure(text: str) -> list[ReportFigure]:
    """Make the figure of the personal models, from worst to best.

    Args:
        text: content of `personal.csv`; empty without a personal evaluation.
    """
    rows = [(int(row["correct"]), int(row["tests"])) for row in csv.DictReader(io.StringIO(text))]
    shares = sorted(correct / tests for correct, tests in rows if tests)
    if not shares:
        return []
    places = [float(place) for place in range(1, len(shares) + 1)]
    curve = ReportCurve("personal model", places, shares)
    return [
        ReportFigure(
            "clients",
            "Personal models of the clients, from worst to best",
            "clients, sorted",
            "accuracy",
            [curve],
        )
    ]


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
        if not re.search(f"{ACCURACY}|{LOSS}", name):
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
    wanted = [name for name in names if kind in name and not NOT_DRAWN.search(name)]
    drawn = (_curve(records, x, name) for name in wanted)
    return [curve for curve in drawn if curve.x]


def _curve(records: Sequence[RoundRecord], x: Sequence[float], metric: str) -> ReportCurve:
    points = [
        (place, float(value))
        for place, record in zip(x, records, strict=True)
        if isinstance(value := record.metrics.get(metric), int | float)
    ]
    return ReportCurve(format_metric(metric), [point[0] for point in points], [point[1] for point in points])


def format_metric(metric: str) -> str:
    """Write the name of a metric for people, e.g. `global_accuracy` as `global accuracy`."""
    return metric.replace("_", " ").replace("worst10", "of the worst 10 % of clients")


def _make_cost_curves(records: Sequence[RoundRecord], x: list[float], part: str) -> Iterator[ReportCurve]:
    """Make the cumulative cost of local training; with fine-tuning a second curve adds its cost."""
    if all(record.cost is None for record in records):
        return
    spent = [total_cost([record]) for record in records]
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
