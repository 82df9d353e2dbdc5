"""Verdicts on the claims of a table, computed from its finished runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any, TypeAlias

from fedsim.base.statistics import PairedDifference, adjust_holm, compare_paired, count_pairs_to_tell
from jobs.grid.claims import OF_SPENT, SPENT, Claim, Comparison, Control
from jobs.grid.finished import Cell, Found, add_views, count_rounds, find_cells
from jobs.grid.journal import Entry
from jobs.grid.markdown import SUMS
from jobs.grid.overview import find_curve
from jobs.grid.table import Table

OF_REACH = ("reach", "reach_best")
"""The values of `show` for which a run may never reach the goal."""

Values: TypeAlias = Mapping[int, float]
"""{seed: figure}."""


class Outcome(StrEnum):
    """The verdicts on a claim."""

    HELD = "held"
    REVERSED = "reversed"
    UNDECIDED = "undecided"
    CROSSING = "not shown to be level"
    UNTESTABLE = "not testable at this scale"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim in one cell of its table.

    Attributes:
        claim: of the paper.
        table: the name of the table.
        cell: {axis: label} of the axes that the claim leaves open.
        outcome: the verdict.
        reason: why the claim is not testable, or that the control of a held or reversed claim is not run; ""
            for other verdicts.
        evidence: the cells and the difference of the control that contradicts the claim, and the number of
            seeds that would decide a control which has to hold; "" without one.
        value, baseline: means over the seeds that both have; None without runs.
        difference: of the two, paired by seed; None without runs. In "%", of the geometric means, relative to
            the baseline's.
        p_value: of the difference (with `by` or a margin, of its distance to that), adjusted by Holm's method
            for all comparisons of the table that have a p-value; None without an interval, and for sums that
            differ by the same number with every seed, because they are counts and not samples.
        seeds: number of seeds with which the test would find the measured difference with power 0.8; None if
            the test has found it, or would need more than 1,000.
        diverged: seeds that are left out because a figure is not finite: a run diverged, or never reached
            the target of the claim.
        late: runs that never reached the goal of `reach` or `reach_best`. Each counts as one round more than
            it has. Its true rounds are unknown, so the claim is undecided.
        bound: "≥" or "≤" if late runs make the difference a bound of the true one; else "".
        unit: of the differences: "points" (percentage points), "rounds", "%" of the baseline, or "".
        scale: the factor from the figures to the unit.
    """

    claim: Claim
    table: str
    cell: Mapping[str, str]
    outcome: Outcome
    reason: str = ""
    evidence: str = ""
    value: float | None = None
    baseline: float | None = None
    difference: PairedDifference | None = None
    p_value: float | None = None
    seeds: int | None = None
    diverged: int = 0
    late: int = 0
    bound: str = ""
    unit: str = ""
    scale: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Make the verdict data for programs, in the units of the metric; a difference in "%" is a share."""
        about = {"claim": self.claim.id, "sentence": self.claim.sentence, "table": self.table}
        difference = None if self.difference is None else asdict(self.difference)
        figures = {"value": self.value, "baseline": self.baseline, "difference": difference}
        return {
            **{**about, "cell": dict(self.cell), "verdict": str(self.outcome), "reason": self.reason},
            **{**figures, "p_value": self.p_value, "seeds": self.seeds},
            **{"diverged": self.diverged, "late": self.late},
        }

    def describe_cell(self) -> str:
        """Write both cells, e.g. `KDIA against FedAvg, Dir(0.1)`."""
        baseline, labels = self.claim.baseline, {**self.claim.value, **self.cell}
        if not baseline:
            return ""
        own = ", ".join(labels[axis] for axis in baseline)
        rest = [label for axis, label in labels.items() if axis not in baseline]
        more = [f"more than at {', '.join(self.claim.more_than.values())}"] if self.claim.more_than else []
        return ", ".join([f"{own} against {', '.join(baseline.values())}", *rest, *more])

    def describe(self) -> str:
        """Write the verdict, with its reason or the number of seeds that would decide it."""
        more = [f"{self.reason}: {self.evidence}" if self.evidence else self.reason] if self.reason else []
        return self._describe([*more, *self.describe_seeds()])

    def describe_briefly(self) -> str:
        """Write the verdict without the sentence of the control, which the card has once for all cells."""
        more = [f"control: {self.evidence}"] if self.evidence else [self.reason] if self.reason else []
        return self._describe([*more, *self.describe_seeds()])

    def _describe(self, more: list[str]) -> str:
        return f"{self.outcome} ({'; '.join(more)})" if more else str(self.outcome)

    def describe_seeds(self, control: Control | None = None) -> list[str]:
        """Write the number of seeds that would decide, late runs, and seeds that are left out.

        Args:
            control: the comparison of the figures, if it is not the claim's own.
        """
        judged = control or self.claim
        more = list[str]()
        if self.difference is not None and self.difference.pairs == 1:
            more.append("one seed")
        elif self.outcome is Outcome.UNDECIDED and self.difference is not None:
            more += self._describe_need(self.difference, judged)
        if self.late:
            runs = "1 run never reaches" if self.late == 1 else f"{self.late} runs never reach"
            more.append(f"{runs} the goal")
        if self.diverged:
            how = "diverged" if judged.target is None else "never reached the target"
            more.append(f"{self.diverged} {how}")
        return more

    def _describe_need(self, difference: PairedDifference, judged: Comparison) -> list[str]:
        """Write how many seeds would decide, and that they would decide against the claim or control."""
        if self.late or (self.diverged and judged.target is not None):
            return []  # the difference is not known
        if not difference.deviation:
            return [
                "no difference with any seed" if difference.mean == 0 else "one difference with all seeds"
            ]
        sign = -1 if judged.direction == "below" else 1
        is_against = sign * (difference.mean - sign * (judged.by or 0.0)) < 0
        side = f" against the {type(judged).__name__.lower()}" if is_against else ""
        seeds = f"about {self.seeds}" if self.seeds else "over 1,000"
        return [f"{seeds} seeds would decide it{side}"]

    def format_figures(self) -> str:
        """Write the means of both sides, e.g. `65.2 against 62.0`; "" where they say little."""
        if self.value is None or self.baseline is None or self.claim.more_than or self.unit in ("%", ""):
            return ""
        own, other = (f"{value * self.scale:.{self.digits}f}" for value in (self.value, self.baseline))
        return f"{own} against {other}"

    def format_difference(self) -> str:
        """Write the difference with its interval, e.g. `+3.2 [1.1, 5.3] points`."""
        if self.difference is None:
            return ""
        found, scale = self.difference, self.scale
        text = f"{self.bound} {found.mean * scale:+.{self.digits}f}".lstrip()
        if found.low is not None and found.high is not None:
            text += f" [{found.low * scale:.{self.digits}f}, {found.high * scale:.{self.digits}f}]"
        return f"{text} {self.unit}".rstrip()

    def format_p(self) -> str:
        """Write the adjusted p-value, e.g. `0.03`."""
        if self.p_value is None:
            return ""
        return "< 0.001" if self.p_value < 0.001 else f"{self.p_value:.3f}"

    @property
    def digits(self) -> int:
        """The number of decimal places of the difference."""
        return 2 if self.unit == "points" else 1 if self.unit else 4


def judge_claims(table: Table, entries: Mapping[str, Entry]) -> list[Verdict]:
    """Judge every claim of a table in each of its cells.

    Args:
        table: with claims.
        entries: its finished runs by key.

    Returns:
        The verdicts in the order of the claims.
    """
    if not table.claims:
        return []
    wide, found = table.list_views_as_labels(), add_views(table, find_cells(table, entries))
    verdicts = list[Verdict]()
    for claim in table.claims:
        if claim.why_not:
            verdicts.append(Verdict(claim, table.name, {}, Outcome.UNTESTABLE, claim.why_not))
            continue
        verdicts += [_judge(claim, wide, found, cell) for cell in claim.open_cells(wide.axes)]
    return _adjust(verdicts)


def _judge(claim: Claim, table: Table, found: Found, cell: Mapping[str, str]) -> Verdict:
    verdict = _compare(claim, claim, table, found, cell)
    if verdict.outcome not in (Outcome.HELD, Outcome.REVERSED):
        return verdict
    reason = ""
    for control in claim.control:
        if control.only_held and verdict.outcome is Outcome.REVERSED:
            continue
        other = _compare(claim, control, table, found, cell)
        if control.must_hold and other.outcome is Outcome.NOT_RUN and not other.diverged:
            return replace(verdict, outcome=Outcome.UNTESTABLE, reason="its control is not run")
        harmless = {Outcome.HELD} if control.must_hold else {*Outcome} - {Outcome.REVERSED}
        if other.outcome not in harmless:
            figure = other.format_difference() or str(other.outcome)
            parts = [f"{_name_control(claim, control, cell)} {figure}", *other.describe_seeds(control)]
            evidence = ", ".join(parts)
            return replace(verdict, outcome=Outcome.UNTESTABLE, reason=control.sentence, evidence=evidence)
        if other.outcome is Outcome.NOT_RUN:
            reason = "its control is not run"
        # One seed has no interval, and so can contradict nothing.
        elif other.difference is not None and other.difference.pairs < 2:
            reason = "its control has one seed"
    return replace(verdict, reason=reason) if reason else verdict


def _name_control(claim: Claim, control: Control, cell: Mapping[str, str]) -> str:
    """Write the cells of a control, e.g. `Alone against ACE-pFL`, with its own labels of other axes."""
    here = {**cell, **claim.value, **control.value}
    own = ", ".join(here[axis] for axis in control.baseline)
    further = [label for axis, label in control.value.items() if axis not in control.baseline]
    return ", ".join([f"{own} against {', '.join(control.baseline.values())}", *further])


def _compare(
    claim: Claim, comparison: Comparison, table: Table, found: Found, cell: Mapping[str, str]
) -> Verdict:
    here = {**cell, **claim.value, **comparison.value}
    there = {**here, **comparison.baseline}
    pairs = [(here, there)]
    if comparison.more_than:
        pairs.append(({**here, **comparison.more_than}, {**there, **comparison.more_than}))
    read = [[_collect(comparison, table, found, labels) for labels in pair] for pair in pairs]
    cells = [each for pair in zip(pairs, read, strict=True) for each in zip(*pair, strict=True)]
    values, baseline = read[0]
    if comparison.more_than:
        values, baseline = _subtract(values, baseline), _subtract(*read[1])
    shared = sorted(values.keys() & baseline.keys())
    finite = [seed for seed in shared if math.isfinite(values[seed] - baseline[seed])]
    if shared and not finite and comparison.target is not None:
        reason = f"no seed has two runs that reach {comparison.target:g}"
        return Verdict(claim, table.name, cell, Outcome.UNTESTABLE, reason)
    if not finite:
        return Verdict(claim, table.name, cell, Outcome.NOT_RUN, diverged=len(shared))
    figures, others = [values[seed] for seed in finite], [baseline[seed] for seed in finite]
    unit, scale = _choose_unit(comparison, table, min(figures + others))
    difference, judged = _compare_pairs(comparison, figures, others, unit)
    outcome = decide(judged, comparison.direction, comparison.margin)
    late = [_count_late(comparison, table, found, *each, finite) for each in cells]
    verdict = Verdict(
        claim=claim,
        table=table.name,
        cell=cell,
        outcome=outcome,
        value=fmean(figures),
        baseline=fmean(others),
        difference=difference,
        p_value=_find_p_value(comparison, figures, others, judged),
        seeds=count_pairs_to_tell(judged) if outcome is Outcome.UNDECIDED else None,
        diverged=len(shared) - len(finite),
        late=sum(late),
        unit=unit,
        scale=scale,
    )
    misses = [seed for seed in shared if math.isfinite(values[seed]) != math.isfinite(baseline[seed])]
    if verdict.late or (misses and comparison.target is not None):
        return _leave_undecided(verdict, comparison, late)
    return verdict


def _leave_undecided(verdict: Verdict, comparison: Comparison, late: Sequence[int]) -> Verdict:
    """Return the verdict without a decision: how late runs are that never get there is unknown.

    Args:
        verdict: as if such runs were one round late, or without their seeds.
        comparison: of the verdict.
        late: number of late runs of the value, its baseline, and with `more_than` of the other two cells.
    """
    # A late run of the value or of the last cell makes the true difference larger, one of the others smaller.
    signs = {sign for sign, count in zip((1, -1, -1, 1), late, strict=False) if count}
    difference = verdict.difference and replace(verdict.difference, low=None, high=None, p_value=None)
    return replace(
        verdict,
        outcome=Outcome.UNDECIDED if comparison.margin is None else Outcome.CROSSING,
        difference=None if len(signs) > 1 else difference,
        bound="" if len(signs) != 1 else "≥" if 1 in signs else "≤",
        p_value=None,
        seeds=None,
    )


def _compare_pairs(
    comparison: Comparison, figures: Sequence[float], others: Sequence[float], unit: str
) -> tuple[PairedDifference, PairedDifference]:
    """Return the difference that is shown, and the one that decides: of the logarithms, or beyond `by`."""
    if unit == "%":
        judged = compare_paired([math.log(each) for each in figures], [math.log(each) for each in others])
        if judged.deviation == 0 and _is_counted(comparison):
            judged = replace(judged, low=judged.mean, high=judged.mean)
        low, high = (None if end is None else math.expm1(end) for end in (judged.low, judged.high))
        return replace(judged, mean=math.expm1(judged.mean), low=low, high=high), judged
    difference = compare_paired(figures, others)
    if comparison.by is None:
        return difference, difference
    shift = comparison.by if comparison.direction == "above" else -comparison.by
    return difference, compare_paired(figures, [other + shift for other in others])


def _is_counted(comparison: Comparison) -> bool:
    """Whether the figures are sums of whole runs, such as bytes: equal differences of them are no chance."""
    return comparison.metric in SUMS or (comparison.show == "spent" and comparison.target is None)


def _find_p_value(
    comparison: Comparison, figures: Sequence[float], others: Sequence[float], judged: PairedDifference
) -> float | None:
    """Return the p-value: below 0.05 exactly if the interval lies on one side of 0, `by`, or each margin."""
    if comparison.margin is None:
        return judged.p_value
    ends = [-comparison.margin, *([comparison.margin] if comparison.direction == "level" else [])]
    tests = {end: compare_paired(figures, [other + end for other in others]).p_value for end in ends}
    beyond = [p for end, p in tests.items() if end * (judged.mean - end) > 0]
    known = [p for p in beyond or tests.values() if p is not None]
    return max(known, default=None)


def decide(difference: PairedDifference, direction: str, margin: float | None) -> Outcome:
    """Decide a comparison by the confidence interval of its difference.

    Args:
        difference: of the value to the baseline.
        direction: `above`, `below`, `level` or `not_below`.
        margin: of `level` and `not_below`: it is held if the interval lies within the margin on both sides of
            0 (`not_below`: above its lower end), reversed if it lies outside on one side, and crossing if it
            lies on both sides of an end of the margin.
    """
    if difference.low is None or difference.high is None:
        return Outcome.UNDECIDED if margin is None else Outcome.CROSSING
    if margin is not None:
        most = margin if direction == "level" else math.inf
        if difference.low >= -margin and difference.high <= most:
            return Outcome.HELD
        outside = difference.low > most or difference.high < -margin
        return Outcome.REVERSED if outside else Outcome.CROSSING
    sign = difference.sign if direction == "above" else -difference.sign
    return {1: Outcome.HELD, -1: Outcome.REVERSED, 0: Outcome.UNDECIDED}[sign]


def _collect(comparison: Comparison, table: Table, found: Found, labels: Mapping[str, str]) -> Values:
    """Collect the figures of one cell, by seed; a run that never reaches the goal is one round late."""
    cell: Cell = tuple(labels[axis] for axis in table.axes)
    if comparison.show in OF_REACH:
        rounds = count_rounds(table, found, cell, comparison.show)
        return {seed: found[cell][seed].rounds + 1 if n is None else n for seed, n in rounds.items()}
    figures = {seed: _read_figure(comparison, table, entry) for seed, entry in found.get(cell, {}).items()}
    return {seed: figure for seed, figure in figures.items() if figure is not None}


def _count_late(
    comparison: Comparison,
    table: Table,
    found: Found,
    labels: Mapping[str, str],
    figures: Values,
    seeds: Sequence[int],
) -> int:
    """Count the runs of a cell that never reach the goal: their figures are beyond their rounds."""
    if comparison.show not in OF_REACH:
        return 0
    entries = found[tuple(labels[axis] for axis in table.axes)]
    return sum(figures[seed] > entries[seed].rounds for seed in seeds)


def _read_figure(comparison: Comparison, table: Table, entry: Entry) -> float | None:
    metric = comparison.metric or table.metric
    if comparison.show == "converged":
        return entry.spent_to_converge(comparison.metric or "rounds")
    if comparison.show == "spent":
        return entry.spent_to_target(comparison.target, comparison.metric or "rounds")
    if comparison.round is not None:
        return find_curve(entry, metric, table).get(comparison.round)
    if metric == table.metric:
        return entry.read_figure(comparison.show, metric)
    if comparison.show == "final":
        return entry.read_total(metric)
    if metric not in entry.others:
        return None
    return entry.with_metric(metric, metric).read_figure(comparison.show, metric)


def _subtract(values: Values, baseline: Values) -> Values:
    return {seed: values[seed] - baseline[seed] for seed in values.keys() & baseline.keys()}


def _choose_unit(comparison: Comparison, table: Table, smallest: float) -> tuple[str, float]:
    metric = comparison.metric or table.metric
    spent = comparison.show in OF_SPENT and metric in SPENT[1:]
    if comparison.show in (*OF_REACH, *OF_SPENT) and not spent:
        return "rounds", 1.0
    is_plain = comparison.by is None and comparison.margin is None and not comparison.more_than
    if (metric in SUMS or spent) and smallest > 0 and is_plain:
        return "%", 100.0
    if table.percent and "accuracy" in metric:
        return "points", 100.0
    return "", 1.0


def _adjust(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Adjust the p-values of a table for their number."""
    raw = [verdict.p_value for verdict in verdicts if verdict.p_value is not None]
    adjusted = iter(adjust_holm(raw))
    return [
        verdict if verdict.p_value is None else replace(verdict, p_value=next(adjusted))
        for verdict in verdicts
    ]
