"""Comparison of runs: means over seeds, differences paired by seed, and the cost to reach a target.

The command line, the SDK, the REST route and the page take every figure of a comparison from here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from api.comparison.compared_run import ComparedRun
from api.comparison.curves import Along, make_curve
from api.comparison.group_names import list_differences
from api.comparison.measures import Spread, measure_groups
from api.comparison.notes import describe_few_scores, list_notes
from api.comparison.records import (
    LAST,
    MEASURES,
    Comparison,
    ComparisonGroup,
    ComparisonRow,
    MeasureName,
    RunCost,
    TargetCost,
)
from api.comparison.run_data import name_data
from api.comparison.run_groups import RunGroup, group_runs
from api.comparison.run_scores import (
    average_last_scores,
    find_best_score,
    find_common_metric,
    find_final_score,
    find_latest_metrics,
    find_validated_score,
    list_scores,
)
from fedsim.errors import FieldError, RequestError
from fedsim.learning_tasks.metrics import is_lower_better
from jobs.store.records import RoundRecord


def compare_runs(
    runs: Sequence[ComparedRun],
    metric: str | None = None,
    target: float | None = None,
    *,
    last: int = LAST,
    against: str | None = None,
    together: bool = True,
    along: Along = "rounds",
) -> Comparison:
    """Compare runs, grouped by experiment.

    Args:
        runs: at least one run.
        metric: a metric of the records; by default the main metric of the runs. Its direction is that of
            `fedsim.learning_tasks.metrics`: of an accuracy the higher value is better, of an RMSE the lower.
        target: the target value. Default: the worst final value among the runs, so that all runs reach it.
        last: number of scores in the mean of the last rounds.
        against: the baseline: a group's name or the name of one of its runs, or the beginning of either.
            Default: the first group.
        together: False makes one group of each run.
        along: the horizontal axis of the curves.

    Raises:
        RequestError: the runs have scores, but none of the metric; no group is the baseline; or `last` is
            below 1.
    """
    if last < 1:
        raise RequestError([FieldError("last", last, "is too small", "allowed: whole numbers from 1")])
    known = sorted({name for run in runs for record in run.records for name in record.metrics})
    if metric is not None and known and metric not in known:
        raise _make_metric_error(metric, known)
    metric = metric or find_common_metric([find_latest_metrics(run.records) for run in runs])
    groups = group_runs(runs, metric, together)
    counted = [run for group in groups for run in group.counted]
    data = {id(run): name for run, name in zip(runs, name_data(runs, metric), strict=True)}
    if target is None and len({data[id(run)] for run in counted} - {""}) < 2:
        target = _find_worst_final(counted, metric)
    rows = [_make_row(run, data[id(run)], metric, target, last) for run in runs]
    by_run = {id(run): row for run, row in zip(runs, rows, strict=True)}
    baseline = _find_baseline(groups, against)
    made = _make_groups(groups, lambda run: by_run[id(run)], baseline, metric, along)
    return Comparison(
        metric=metric,
        lower_is_better=is_lower_better(metric),
        metrics=known,
        target=target,
        last=last,
        along=along,
        baseline=None if baseline is None else groups[baseline].name,
        groups=made,
        lines=rows,
        differences=list_differences([group.members for group in groups]),
        notes=[
            *list_notes(groups, lambda run: by_run[id(run)], baseline, metric),
            *describe_few_scores(groups, metric, last),
        ],
    )


def _make_metric_error(metric: str, known: Sequence[str]) -> RequestError:
    close = difflib.get_close_matches(metric, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"metrics: {', '.join(known)}"
    return RequestError([FieldError("metric", metric, "is a metric of no round of these runs", hint)])


def _find_baseline(groups: Sequence[RunGroup], against: str | None) -> int | None:
    """Return the index of the baseline group: the given one, else the first with results."""
    if against is None:
        return next((index for index, group in enumerate(groups) if group.counted), None)
    names = [group.name for group in groups]
    if against in names:
        return names.index(against)
    similar = [
        index
        for index, group in enumerate(groups)
        if group.name.startswith(against) or any(run.run.startswith(against) for run in group.members)
    ]
    if len(similar) == 1:
        return similar[0]
    problem = (
        "is the beginning of several groups" if similar else "is no group, no run and no beginning of one"
    )
    raise RequestError([FieldError("against", against, problem, f"groups: {'; '.join(names)}")])


def _find_worst_final(runs: Sequence[ComparedRun], metric: str) -> float | None:
    finals = [find_final_score(run.records, metric) for run in runs]
    worst = max if is_lower_better(metric) else min
    return worst((final.value for final in finals if final), default=None)


def _make_row(run: ComparedRun, dataset: str, metric: str, target: float | None, last: int) -> ComparisonRow:
    sign = -1.0 if is_lower_better(metric) else 1.0
    found = list(list_scores(run.records, metric))
    is_reached = (
        score.round for score in found if target is not None and sign * score.value >= sign * target
    )
    first = next(is_reached, None)
    final, whole = find_final_score(run.records, metric), _cost(run.records)
    return ComparisonRow(
        run=run.run,
        name=run.name,
        seed=run.seed,
        dataset=dataset,
        state=run.state,
        rounds=len(run.records),
        final=final,
        last_rounds=average_last_scores(found, final, last),
        validated=find_validated_score(run.records, metric),
        best=find_best_score(found, metric),
        cost_to_target=None
        if first is None
        else _cost([each for each in run.records if each.round <= first]),
        bytes=whole.bytes,
        seconds=whole.seconds,
        clock=whole.clock,
        joules=whole.joules,
    )


def _cost(records: Sequence[RoundRecord]) -> RunCost:
    traffic = sum(record.bytes.down + record.bytes.up for record in records)
    readings = [record.clock for record in records if record.clock]
    return RunCost(
        len(records),
        traffic,
        sum(record.seconds.total for record in records),
        readings[-1].total if readings else None,
        sum(reading.joules for reading in readings) if readings else None,
    )


def _make_groups(
    groups: Sequence[RunGroup],
    find_row: Callable[[ComparedRun], ComparisonRow],
    baseline: int | None,
    metric: str,
    along: Along,
) -> list[ComparisonGroup]:
    rows = [[find_row(run) for run in group.counted] for group in groups]
    datasets = [find_row(group.members[0]).dataset for group in groups]
    comparable = [baseline is None or name in ("", datasets[baseline]) for name in datasets]
    lower = is_lower_better(metric)
    diverged = {index for index, group in enumerate(groups) if group.not_finite}
    measures = {
        name: measure_groups(
            [_list_figures(row, name) for row in rows], baseline, comparable, lower, diverged
        )
        for name in MEASURES
    }
    return [
        ComparisonGroup(
            name=group.name,
            note=group.note,
            members=[run.run for run in group.members],
            runs=[run.run for run in group.counted],
            seeds=[run.seed for run in group.counted],
            dataset=datasets[index],
            **{name: found[index] for name, found in measures.items()},
            best=Spread.over([row.best.value for row in rows[index] if row.best]),
            cost_to_target=_make_target_cost(rows[index]),
            bytes=Spread.over([row.bytes for row in rows[index]]),
            seconds=Spread.over([row.seconds for row in rows[index]]),
            clock=Spread.over([row.clock for row in rows[index] if row.clock is not None]),
            joules=Spread.over([row.joules for row in rows[index] if row.joules is not None]),
            curve=make_curve([run.records for run in group.counted], metric, along),
        )
        for index, group in enumerate(groups)
    ]


def _list_figures(rows: Sequence[ComparisonRow], name: MeasureName) -> list[tuple[int | None, float]]:
    found = ((row.seed, getattr(row, name)) for row in rows)
    return [(seed, getattr(each, "value", each)) for seed, each in found if each is not None]


def _make_target_cost(rows: Sequence[ComparisonRow]) -> TargetCost:
    reached = [row.cost_to_target for row in rows if row.cost_to_target]
    return TargetCost(
        rounds=Spread.over([cost.rounds for cost in reached]),
        bytes=Spread.over([cost.bytes for cost in reached]),
        seconds=Spread.over([cost.seconds for cost in reached]),
        clock=Spread.over([cost.clock for cost in reached if cost.clock is not None]),
        joules=Spread.over([cost.joules for cost in reached if cost.joules is not None]),
        missed=len(rows) - len(reached),
    )
