"""Scores of the personal evaluation: each client's personal model on its test examples, and their summary."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.learning_tasks.classification import Classification
from fedsim.learning_tasks.learning_task import Scorer
from fedsim.learning_tasks.metrics import METRICS
from fedsim.learning_tasks.score import NOTHING, Score, State, add_scores

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

WORST = 0.1
"""The share of clients, those with the worst values, in means such as `personal_accuracy_worst10`."""

States = tuple[Mapping[str, State] | None, ...]
"""The states of metrics, by client; see `Score.states`."""

MAY_BE_UNDEFINED = ("auroc", "f1", "r2")
"""Metrics without a value for some clients: of a single class, with a single example, or without a label."""

ACCURACY_ALONE = Scorer(Classification(0), ("accuracy",))


def _none() -> Whole:
    return np.empty(0, np.int64)


def _no_sums() -> Real:
    return np.empty(0, np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonalScores:
    """The scores of a personal evaluation: one row for each evaluated client, in ascending order.

    Attributes:
        clients: int64 `[n]`, the numbers of the clients.
        tests: int64 `[n]`, the number of test examples of each client (with several labels per example, the
            number of known labels; of tokens, pixels or targets, the number of those).
        correct: int64 `[n]`, the number of correct predictions of each personal model.
        loss: float64 `[n]`, the sum of the losses over the test examples, for cross-entropy in nats.
        states: of metrics beyond accuracy and perplexity, `[n]`; () without them.
        before_correct: `correct` before fine-tuning; None without fine-tuning.
        before_loss: `loss` before fine-tuning; None without fine-tuning.
        before_states: `states` before fine-tuning; () without fine-tuning.
        scorer: the metrics, and how their states become values.
        failed: the clients whose code raised an error, in ascending order; they have no row.
        untested: number of clients without test examples.
        bytes_down: simulated bytes that the server sent to the clients for the evaluation.
        more: the scores of the same models by further test conventions, by name.
    """

    clients: Whole = field(default_factory=_none)
    tests: Whole = field(default_factory=_none)
    correct: Whole = field(default_factory=_none)
    loss: Real = field(default_factory=_no_sums)
    before_correct: Whole | None = None
    before_loss: Real | None = None
    states: States = ()
    before_states: States = ()
    scorer: Scorer = ACCURACY_ALONE
    failed: tuple[int, ...] = ()
    untested: int = 0
    bytes_down: int = 0
    more: Mapping[str, PersonalScores] = field(default_factory=dict)

    def accuracies(self) -> Real:
        """Return each client's share of correct predictions, float64 `[n]`."""
        return self.correct / np.maximum(self.tests, 1)

    def metrics(self) -> dict[str, float]:
        """Return the metrics for the round's record.

        They are those of `summarise_scores`, and the numbers of evaluated and of untested clients. If the
        clients fine-tuned, the scores before it have the suffix `_before`. Those of a further convention are
        named by it, such as `personal_global_accuracy_mean`.
        """
        found = summarise_scores(self.tests, self.correct, self.loss, self.states, self.scorer)
        if self.before_correct is not None and self.before_loss is not None:
            columns = self.tests, self.before_correct, self.before_loss, self.before_states
            before = summarise_scores(*columns, self.scorer)
            found |= {f"{name}_before": value for name, value in before.items()}
        if found:
            found |= {"personal_clients": len(self.clients), "personal_untested": self.untested}
        for convention, scores in self.more.items():
            named = {name.removeprefix("personal_"): value for name, value in scores.metrics().items()}
            named.pop("untested", None)
            found |= {f"personal_{convention}_{name}": value for name, value in named.items()}
        return found

    def list_evaluated(self) -> list[int]:
        """List the clients with test examples of any convention, in order."""
        return sorted({client for each in (self, *self.more.values()) for client in each.clients.tolist()})

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per evaluated client: client, tests, correct, loss (the mean).

        Instead of `correct` there are other metrics where the run has these. If the clients fine-tuned, a row
        also has the scores before, such as correct_before and loss_before. Columns of a further convention
        are named by it, such as correct_global. A client without test examples of the first convention has
        zeros, and of a further one empty columns.
        """
        columns: dict[str, list[Any]] = {"client": self.clients.tolist(), "tests": self.tests.tolist()}
        columns |= self._list_columns(self.correct, self.loss, self.states)
        if self.before_correct is not None and self.before_loss is not None:
            before = self._list_columns(self.before_correct, self.before_loss, self.before_states)
            columns |= {f"{name}_before": values for name, values in before.items()}
        own = {row[0]: row[1:] for row in zip(*columns.values(), strict=True)}
        names, nothing = list(columns)[1:], [0] * (len(columns) - 1)
        found: list[dict[str, Any]] = [
            {"client": client, **dict(zip(names, own.get(client, nothing), strict=True))}
            for client in self.list_evaluated()
        ]
        for convention, scores in self.more.items():
            rows = {row.pop("client"): row for row in scores.rows()}
            names = list(next(iter(rows.values()), {}))
            for row in found:
                its = rows.get(row["client"], {})
                row |= {f"{name}_{convention}": its.get(name, "") for name in names}
        return found

    def _list_columns(self, correct: Whole, loss: Real, states: States) -> dict[str, list[Any]]:
        values = measure_clients(self.tests, correct, loss, states, self.scorer)
        columns = {"correct": correct.tolist()} if values.pop("accuracy", None) is not None else {}
        columns |= {name: each.tolist() for name, each in values.items()}
        return columns | {"loss": (loss / np.maximum(self.tests, 1)).tolist()}

    def to_csv(self) -> str:
        """Return `rows` as the text of a CSV file with a header."""
        stream, rows = StringIO(), self.rows()
        names = list(rows[0]) if rows else ["client", "tests", "correct", "loss"]
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()


def summarise_scores(
    tests: Whole, correct: Whole, loss: Real, states: States = (), scorer: Scorer = ACCURACY_ALONE
) -> dict[str, float]:
    """Summarise the scores of all clients; {} if no client has test examples.

    Args:
        tests: int64 `[n]`, each client's number of test examples. A client with 0, whose labels are all
            unknown, does not count.
        correct: int64 `[n]`, each client's number of correct predictions.
        loss: float64 `[n]`, the sum of each client's losses.
        states: each client's states of the metrics that these sums do not give, `[n]`; () without them.
        scorer: the metrics.

    Returns:
        `personal_accuracy` and `personal_loss` are pooled: every example has the same weight, as in PFLlib.
        In `personal_accuracy_mean`, its standard deviation `_std` (of these clients, not an estimate for
        others) and the mean of the worst tenth `_worst10` (at least one client), every client has the same
        weight. Every other metric has the same four values. Clients for which a metric is undefined, such as
        the AUROC of a single class, do not count in the last three.
    """
    if not tests.sum():
        return {}
    pooled = Score(int(correct.sum()), float(loss.sum()), int(tests.sum()), _pool(states))
    each, found = measure_clients(tests, correct, loss, states, scorer), dict[str, float]()
    for name, total in scorer.values(pooled).items():
        found |= {f"personal_{name}": total, **_summarise_clients(name, each[name][tests > 0])}
    return found | {"personal_loss": float(loss.sum() / tests.sum())}


def measure_clients(
    tests: Whole, correct: Whole, loss: Real, states: States, scorer: Scorer
) -> dict[str, Real]:
    """Return every metric of every client, float64 `[n]`; the arguments are those of `summarise_scores`."""
    if scorer.metrics == ACCURACY_ALONE.metrics:
        return {"accuracy": correct / np.maximum(tests, 1)}
    columns = correct.tolist(), loss.tolist(), tests.tolist(), states or (None,) * len(tests)
    values = [scorer.values(Score(*row)) for row in zip(*columns, strict=True)]
    return {name: np.array([each[name] for each in values], np.float64) for name in scorer.metrics}


def _pool(states: States) -> Mapping[str, State] | None:
    pooled = NOTHING
    for each in states:
        pooled = add_scores(pooled, Score(0, 0.0, 0, each))
    return pooled.states


def _summarise_clients(name: str, values: Real) -> dict[str, float]:
    """Return the mean, the deviation and the mean of the worst tenth of the clients' values."""
    ordered = np.sort(values[~np.isnan(values)] if name in MAY_BE_UNDEFINED else values)
    if not len(ordered):
        return {}
    worst = max(1, round(WORST * len(ordered)))
    least = ordered[:worst] if METRICS[name].higher_is_better else ordered[-worst:]
    return {
        f"personal_{name}_mean": float(ordered.mean()),
        f"personal_{name}_std": float(ordered.std()),
        f"personal_{name}_worst10": float(least.mean()),
    }


def join_scores(parts: Iterable[PersonalScores], untested: int = 0) -> PersonalScores:
    """Join the scores of several groups of clients into one, in ascending order of the clients.

    Args:
        parts: the groups' scores; empty groups do not matter. If some groups have scores before fine-tuning,
            the others have not tuned: their scores before are those after.
        untested: number of clients without test examples.
    """
    every = list(parts)
    received = sum(part.bytes_down for part in every)
    some = [part for part in every if len(part.clients)]
    if any(part.before_correct is not None for part in some):
        some = [part if part.before_correct is not None else _copy_scores_before(part) for part in some]
    failed = tuple(sorted(client for part in every for client in part.failed))
    conventions = dict.fromkeys(name for part in every for name in part.more)
    more = {name: join_scores(part.more[name] for part in every if name in part.more) for name in conventions}
    if not some:
        return PersonalScores(failed=failed, untested=untested, bytes_down=received, more=more)
    order = np.argsort(np.concatenate([part.clients for part in some]), kind="stable")

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in some]
        return None if values[0] is None else np.concatenate(values)[order]

    def states(name: str) -> States:
        values = [state for part in some for state in getattr(part, name)]
        return tuple(values[place] for place in order) if values else ()

    columns = ("clients", "tests", "correct", "loss", "before_correct", "before_loss")
    return PersonalScores(
        **{name: column(name) for name in columns},
        states=states("states"),
        before_states=states("before_states"),
        scorer=some[0].scorer,
        failed=failed,
        untested=untested,
        bytes_down=received,
        more=more,
    )


def _copy_scores_before(scores: PersonalScores) -> PersonalScores:
    return replace(
        scores, before_correct=scores.correct, before_loss=scores.loss, before_states=scores.states
    )


def sorted_curve(scores: PersonalScores) -> tuple[Whole, Real]:
    """Sort the clients by accuracy, as in Figs 5 and 6 of the layer-scheduling paper.

    Returns:
        The numbers of the clients, int64 `[n]`, by ascending accuracy (ties by number), and their
        accuracies, float64 `[n]`, in the same order.
    """
    accuracies = scores.accuracies()
    order = np.argsort(accuracies, kind="stable")
    return scores.clients[order], accuracies[order]


def scores_from_rows(rows: Iterable[Mapping[str, Any]]) -> PersonalScores:
    """Rebuild the scores of a classification from the rows of its `personal.csv`, from `csv.DictReader`."""
    table = [row for row in rows if int(row["tests"])]

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
