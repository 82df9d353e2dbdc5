"""How clients' own models do on their own test examples: scores by client, and what is read off them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

WORST = 0.1
"""The share of the clients whose mean is `personal_accuracy_worst10`."""


def _none() -> Whole:
    return np.empty(0, np.int64)


def _no_sums() -> Real:
    return np.empty(0, np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonalScores:
    """One row for each client that was scored, in ascending order.

    Attributes:
        clients: int64 `[n]`, their numbers.
        tests: int64 `[n]`, how many test examples each has (with several labels per example, how many labels
            are known).
        correct: int64 `[n]`, how many of them its model gets right.
        loss: float64 `[n]`, the sum of the cross-entropy over them, in nats.
        before_correct, before_loss: the same before fine-tuning; None where there is none.
        failed: the clients that were left out because their code raised, in ascending order.
        untested: how many clients have no test examples.
        bytes_down: simulated bytes of what came down to everybody who was to be scored.
    """

    clients: Whole = field(default_factory=_none)
    tests: Whole = field(default_factory=_none)
    correct: Whole = field(default_factory=_none)
    loss: Real = field(default_factory=_no_sums)
    before_correct: Whole | None = None
    before_loss: Real | None = None
    failed: tuple[int, ...] = ()
    untested: int = 0
    bytes_down: int = 0

    def accuracies(self) -> Real:
        """Each client's share of right answers, float64 `[n]`."""
        return self.correct / np.maximum(self.tests, 1)

    def metrics(self) -> dict[str, float]:
        """What goes into the record, see `summary`; with `_before` as well where there was fine-tuning."""
        found = summarise_scores(self.tests, self.correct, self.loss)
        if self.before_correct is not None and self.before_loss is not None:
            before = summarise_scores(self.tests, self.before_correct, self.before_loss)
            found |= {f"{name}_before": value for name, value in before.items()}
        if found:
            found |= {"personal_clients": len(self.clients), "personal_untested": self.untested}
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The scores as a table: client, tests, correct, loss (the mean, in nats), and before fine-tuning."""
        columns: dict[str, list[Any]] = {
            "client": self.clients.tolist(),
            "tests": self.tests.tolist(),
            "correct": self.correct.tolist(),
            "loss": (self.loss / np.maximum(self.tests, 1)).tolist(),
        }
        if self.before_correct is not None and self.before_loss is not None:
            columns["correct_before"] = self.before_correct.tolist()
            columns["loss_before"] = (self.before_loss / np.maximum(self.tests, 1)).tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_csv(self) -> str:
        """`rows` as the text of a CSV file, with a header."""
        stream, rows = StringIO(), self.rows()
        names = list(rows[0]) if rows else ["client", "tests", "correct", "loss"]
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()


def summarise_scores(tests: Whole, correct: Whole, loss: Real) -> dict[str, float]:
    """The figures of a federation; {} where nobody has test examples.

    Args:
        tests: int64 `[n]`, each client's test examples, at least 1.
        correct: int64 `[n]`, how many of these it gets right.
        loss: float64 `[n]`, the sum of its losses.

    Returns:
        `personal_accuracy`, pooled: every example counts alike (004, PFLlib). `personal_accuracy_mean`, its
        standard deviation `_std` (over the clients there are, not an estimate for others) and the mean of
        the worst tenth `_worst10` (at least one client): every client counts alike (002). `personal_loss`,
        pooled.
    """
    if not tests.sum():
        return {}
    each = np.sort(correct / np.maximum(tests, 1))
    worst = max(1, round(WORST * len(each)))
    return {
        "personal_accuracy": float(correct.sum() / tests.sum()),
        "personal_accuracy_mean": float(each.mean()),
        "personal_accuracy_std": float(each.std()),
        "personal_accuracy_worst10": float(each[:worst].mean()),
        "personal_loss": float(loss.sum() / tests.sum()),
    }


def join_scores(parts: Iterable[PersonalScores], untested: int = 0) -> PersonalScores:
    """The scores of several portions of the clients as one, in ascending order of the clients.

    Args:
        parts: all with the figures before fine-tuning, or all without, save those in which nobody was scored.
        untested: how many clients have no test examples.
    """
    every = list(parts)
    received = sum(part.bytes_down for part in every)
    some = [part for part in every if len(part.clients)]
    failed = tuple(sorted(client for part in every for client in part.failed))
    if not some:
        return PersonalScores(failed=failed, untested=untested, bytes_down=received)
    order = np.argsort(np.concatenate([part.clients for part in some]), kind="stable")

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in some]
        return None if values[0] is None else np.concatenate(values)[order]

    columns = ("clients", "tests", "correct", "loss", "before_correct", "before_loss")
    return PersonalScores(
        **{name: column(name) for name in columns},
        failed=failed,
        untested=untested,
        bytes_down=received,
    )


def sorted_curve(scores: PersonalScores) -> tuple[Whole, Real]:
    """Figs 5 and 6 of the layer-scheduling paper: the clients from worst to best.

    Returns:
        The clients' numbers, int64 `[n]`, by ascending accuracy (ties by number), and the accuracies in that
        order, float64 `[n]`.
    """
    accuracies = scores.accuracies()
    order = np.argsort(accuracies, kind="stable")
    return scores.clients[order], accuracies[order]


def scores_from_rows(rows: Iterable[Mapping[str, Any]]) -> PersonalScores:
    """The scores out of the rows of a `personal.csv`, as `csv.DictReader` gives them."""
    table = list(rows)

    def column(name: str, kind: Any) -> Any:
        return np.array([kind(row[name]) for row in table], kind)

    tests = column("tests", int)
    before = bool(table) and "correct_before" in table[0]
    return PersonalScores(
        clients=column("client", int),
        tests=tests,
        correct=column("correct", int),
        loss=column("loss", float) * tests,
        before_correct=column("correct_before", int) if before else None,
        before_loss=column("loss_before", float) * tests if before else None,
    )
