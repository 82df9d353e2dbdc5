"""What a report draws of a run: groups of curves over its rounds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from jobs.records import RoundRecord

ACCURACY, LOSS = "accuracy", "loss"
PHASES = {"train": "training", "evaluate": "scoring", "server": "server", "survey": "survey"}


class Curve(NamedTuple):
    """One curve: what it is called, where its points are, which values it has there."""

    name: str
    x: list[float]
    y: list[float]


class Figure(NamedTuple):
    """One picture.

    Attributes:
        name: for files, such as `accuracy-by-traffic`.
        title: for people.
        x_title: of the axis along.
        y_title: of the axis up.
        curves: at least one.
    """

    name: str
    title: str
    x_title: str
    y_title: str
    curves: list[Curve]


def figures(records: Sequence[RoundRecord]) -> list[Figure]:
    """Find what can be drawn of a run: accuracy and loss by round, accuracy by traffic, seconds by phase."""
    rounds = [float(record.round) for record in records]
    sent = list(accumulate((record.bytes.down + record.bytes.up) / 1e6 for record in records))
    found = [
        Figure("accuracy", "Accuracy by round", "round", "accuracy", _metrics(records, rounds, ACCURACY)),
        Figure("loss", "Loss by round", "round", "loss", _metrics(records, rounds, LOSS)),
        Figure(
            "accuracy-by-traffic",
            "Accuracy by simulated traffic",
            "traffic, down and up (MB)",
            "accuracy",
            _metrics(records, sent, ACCURACY),
        ),
        Figure("seconds", "Seconds of each round", "round", "seconds", list(_phases(records, rounds))),
    ]
    return [figure for figure in found if figure.curves]


def clients_figure(text: str) -> list[Figure]:
    """Draw each client's own model, from worst to best.

    Args:
        text: of a `personal.csv`; empty where nobody's own model was scored.
    """
    rows = [(int(row["correct"]), int(row["tests"])) for row in csv.DictReader(io.StringIO(text))]
    shares = sorted(correct / tests for correct, tests in rows if tests)
    if not shares:
        return []
    places = [float(place) for place in range(1, len(shares) + 1)]
    curve = Curve("own model", places, shares)
    return [
        Figure("clients", "Clients' own models, from worst to best", "clients, sorted", "accuracy", [curve])
    ]


def _metrics(records: Sequence[RoundRecord], x: Sequence[float], kind: str) -> list[Curve]:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    wanted = [name for name in names if kind in name and not name.endswith("_std")]
    drawn = (_curve(records, x, name) for name in wanted)
    return [curve for curve in drawn if curve.x]


def _curve(records: Sequence[RoundRecord], x: Sequence[float], metric: str) -> Curve:
    points = [
        (place, float(value))
        for place, record in zip(x, records, strict=True)
        if isinstance(value := record.metrics.get(metric), int | float)
    ]
    name = metric.replace("_", " ").replace("worst10", "of the worst tenth")
    return Curve(name, [point[0] for point in points], [point[1] for point in points])


def _phases(records: Sequence[RoundRecord], x: list[float]) -> Iterator[Curve]:
    for phase, name in PHASES.items():
        values = [float(getattr(record.seconds, phase)) for record in records]
        if any(values):
            yield Curve(name, x, values)
