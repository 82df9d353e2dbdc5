"""End a run before its last round: StopRule says when, RunEnd says why and of which round the result is.

Everything is computed from the records of the rounds, so a run that goes on from a checkpoint ends after the
same round. The module imports neither torch nor Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from fedsim.errors import FieldError, SpecError
from fedsim.learning_tasks.metrics import is_lower_better

EndReason: TypeAlias = Literal[
    "target",
    "patience",
    "max_bytes",
    "max_seconds",
    "max_simulated_seconds",
    "round",
    "privacy_budget",
    "rounds",
]


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a run ends before its last round: after the first round that meets one of these criteria.

    Attributes:
        metric: a metric of the records, for `target` and `patience`.
        target: end when the metric is at least this value; for a loss, an RMSE and others, at most.
        patience: end when the metric did not improve in this many rounds that measured it. The result of the
            run is then that of the round with the best value.
        max_seconds: end when the rounds took this many seconds, by their records.
        max_simulated_seconds: end when the simulated clock shows this many seconds.
        max_bytes: end when clients and server exchanged this many simulated bytes, down and up.
        round: end after this round.
        affordable_rounds: end after this round, because the next one would exceed the privacy budget.
    """

    metric: str | None = None
    target: float | None = None
    patience: int | None = None
    max_seconds: float | None = None
    max_simulated_seconds: float | None = None
    max_bytes: float | None = None
    round: int | None = None
    affordable_rounds: int | None = None


@dataclass(frozen=True)
class RunEnd:
    """Why a run with a stop rule ended, and of which round its result is.

    Attributes:
        reason: the criterion that was met; "rounds" if none was, and all rounds ran.
        round: the last round.
        result_round: the round of the result: with `patience` the best one by the metric, else the last one.
        metrics: the metrics of this round; a value that is not finite is None.
        message: all this as a sentence.
    """

    reason: EndReason
    round: int
    result_round: int
    metrics: Mapping[str, Any]
    message: str


@dataclass(frozen=True)
class StopProgress:
    """A stop rule and the rounds so far; `add` returns the progress after one more round.

    Attributes:
        rule: the rule.
        known_seconds: {round: its seconds} of rounds that run again after a loss. They count with the seconds
            of their first run, so that the run ends after the same round.
        round, seconds, bytes: the number of rounds, and their sums.
        simulated_seconds: what the simulated clock shows; 0 without one.
        value: the metric after the last round; None if that round did not measure it.
        best_value: the best value of the metric; None before the first one.
        result_round, metrics: the round that is the result if the run ends now, and its metrics.
        waited: number of rounds that measured the metric since the best one.
    """

    rule: StopRule
    known_seconds: Mapping[int, float] = field(default_factory=dict)
    round: int = 0
    seconds: float = 0.0
    simulated_seconds: float = 0.0
    bytes: int = 0
    value: float | None = None
    best_value: float | None = None
    result_round: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    waited: int = 0

    def add(self, record: Mapping[str, Any], is_evaluated: bool = False) -> StopProgress:
        """Return the progress after one more round.

        Args:
            record: the record of the round, as plain data.
            is_evaluated: whether the round was evaluated, and so must have the metric of the rule.

        Raises:
            SpecError: the round was evaluated and does not have the metric.
        """
        round, metrics, sent = int(record["round"]), record["metrics"], record["bytes"]
        if is_evaluated and self.rule.metric is not None and self.rule.metric not in metrics:
            hint = f"an evaluated round of this run measures {', '.join(sorted(metrics))}"
            raise SpecError([FieldError("stop.metric", self.rule.metric, "is not measured", hint)])
        found = metrics.get(self.rule.metric)
        value = None if found is None or not math.isfinite(found) else float(found)
        after = replace(
            self,
            round=round,
            seconds=self.seconds + self.known_seconds.get(round, record["seconds"]["total"]),
            simulated_seconds=(record.get("clock") or {}).get("total", 0.0),
            bytes=self.bytes + sent["down"] + sent["up"],
            value=value,
        )
        best = self.best_value
        improved = value is not None and (best is None or self._sign * value > self._sign * best)
        if improved or self.rule.patience is None or best is None:
            finite = {name: _keep_finite(each) for name, each in metrics.items()}
            after = replace(after, result_round=round, metrics=finite)
        if improved:
            return replace(after, best_value=value, waited=0)
        return replace(after, waited=self.waited + (self.rule.metric in metrics))

    def add_all(self, records: Iterable[Mapping[str, Any]]) -> StopProgress:
        """Return the progress after these rounds."""
        after = self
        for record in records:
            after = after.add(record)
        return after

    @property
    def _sign(self) -> float:
        """1.0 if a larger value of the metric is better; else -1.0."""
        return -1.0 if is_lower_better(self.rule.metric or "") else 1.0

    def find_reason(self) -> EndReason | None:
        """Return the criterion that the rounds so far meet; None if they meet none."""
        rule, value, sign = self.rule, self.value, self._sign
        if rule.target is not None and value is not None and sign * value >= sign * rule.target:
            return "target"
        if rule.patience is not None and self.waited >= rule.patience:
            return "patience"
        if rule.max_bytes is not None and self.bytes >= rule.max_bytes:
            return "max_bytes"
        if rule.max_seconds is not None and self.seconds >= rule.max_seconds:
            return "max_seconds"
        if rule.max_simulated_seconds is not None and self.simulated_seconds >= rule.max_simulated_seconds:
            return "max_simulated_seconds"
        if rule.round is not None and self.round >= rule.round:
            return "round"
        if rule.affordable_rounds is not None and self.round >= rule.affordable_rounds:
            return "privacy_budget"
        return None

    def make_end(self) -> RunEnd:
        """Return why the run ends after these rounds."""
        reason = self.find_reason() or "rounds"
        return RunEnd(reason, self.round, self.result_round, self.metrics, self._write_message(reason))

    def _write_message(self, reason: EndReason) -> str:
        rule, metric = self.rule, self.rule.metric
        causes: dict[EndReason, str] = {
            "target": f"{metric} is {_write(self.value)} (stop.target: {rule.target})",
            "patience": f"{metric} did not improve in {self.waited} measured rounds (stop.patience)",
            "max_bytes": f"{self.bytes:,} bytes travelled (stop.max_bytes: {rule.max_bytes or 0:,.0f})",
            "max_seconds": f"the rounds took {self.seconds:.1f} s (stop.max_seconds: {rule.max_seconds})",
            "max_simulated_seconds": f"the simulated clock shows {self.simulated_seconds:.1f} s "
            f"(stop.max_simulated_seconds: {rule.max_simulated_seconds})",
            "round": f"stop.round is {rule.round}",
            "privacy_budget": "another round would spend more than privacy.epsilon",
        }
        cause = causes.get(reason)
        first = f"stopped after round {self.round}: {cause}" if cause else f"all {self.round} rounds ran"
        best = f", the best by {metric} ({_write(self.best_value)})" if rule.patience else ""
        return f"{first}; the result is of round {self.result_round}{best}"


def _keep_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(value: float | None) -> str:
    return "never measured" if value is None else f"{value:.4f}"
