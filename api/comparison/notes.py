"""What a reader of a comparison must know: unequal data, code or rounds, missing results, too few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from api.comparison.compared_run import ComparedRun
from api.comparison.records import ComparisonRow
from api.comparison.run_groups import RunGroup
from api.comparison.run_scores import list_scores
from jobs.store.states import FINAL

FindRow = Callable[[ComparedRun], ComparisonRow]


def list_notes(groups: Sequence[RunGroup], find_row: FindRow, baseline: int | None, metric: str) -> list[str]:
    """List what a reader must know, as sentences.

    Args:
        groups: all groups.
        find_row: returns the row of a run.
        baseline: index of the baseline group; None without results.
        metric: of the comparison.
    """
    counted = [group for group in groups if group.counted]
    return [
        *_describe_unequal_data(counted, find_row),
        *_describe_unequal_sources(groups, find_row),
        *_describe_missing_results(groups),
        *_describe_not_finite(groups, metric),
        *_describe_unequal_rounds(counted, find_row),
        *_describe_seeds(groups, counted, baseline),
    ]


def describe_few_scores(groups: Sequence[RunGroup], metric: str, last: int) -> Iterator[str]:
    """Describe that runs have fewer scores than the mean of the last rounds asks for."""
    counts = {
        group.name: min(len([*list_scores(run.records, metric)]) for run in group.counted)
        for group in groups
        if group.counted and group.counted[0] not in group.not_finite
    }
    few = [f"{name}: {count}" for name, count in counts.items() if 0 < count < last]
    if few:
        yield f"The mean of the last {last} is a mean of fewer rounds: {'; '.join(few)}."


def _join(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def _describe_unequal_data(groups: Sequence[RunGroup], find_row: FindRow) -> Iterator[str]:
    names = sorted({find_row(run).dataset for group in groups for run in group.counted} - {""})
    if len(names) > 1:
        yield (
            f"The rows have different data: {_join(names)}. Their values are not comparable: there is no "
            "best row, no difference between different data, and no target but your own."
        )


def _describe_unequal_sources(groups: Sequence[RunGroup], find_row: FindRow) -> Iterator[str]:
    """Describe the packages and data of which the runs had several versions; older records name none."""
    runs = [(run, _name_run(group, run)) for group in groups for run in group.members]
    code = [
        (package, version, name)
        for run, name in runs
        for package, version in dict.fromkeys(each for one in run.records for each in one.engine.code.items())
    ]
    for package, versions in _find_several_versions(code):
        yield f"The runs had different code of {package}: {versions}."
    examples = [
        (find_row(run).dataset, fingerprint, name)
        for run, name in runs
        for fingerprint in dict.fromkeys(one.engine.data for one in run.records)
        if fingerprint
    ]
    for dataset, versions in _find_several_versions(examples):
        yield f"The runs had different examples of {dataset}: {versions}."


def _find_several_versions(found: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the things of several versions, each with a text of its versions.

    Args:
        found: thing, version, and the name of a run that had it.
    """
    things: dict[str, dict[str, list[str]]] = {}
    for thing, version, run in found:
        things.setdefault(thing, {}).setdefault(version, []).append(run)
    for thing, versions in sorted(things.items()):
        if len(versions) > 1:
            yield (
                thing,
                "; ".join(
                    f"{version} ({len(runs)} {'run' if len(runs) == 1 else 'runs'}, such as {runs[0]})"
                    for version, runs in versions.items()
                ),
            )


def _describe_missing_results(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Describe the runs without a round, first those that may still get some."""
    for has_ended, text in ((False, "No results yet"), (True, "No results")):
        found: dict[str, list[str]] = {}
        for group in groups:
            for run in group.members:
                if not run.records and (run.state in FINAL) == has_ended:
                    found.setdefault(run.state.lower() or "no rounds", []).append(_name_run(group, run))
        if found:
            parts = [f"{'; '.join(names)} ({state})" for state, names in found.items()]
            yield f"{text}: {', '.join(parts)}."


def _name_run(group: RunGroup, run: ComparedRun) -> str:
    return f"{group.name}, seed {run.seed}" if len(group.members) > 1 else group.name


def _describe_not_finite(groups: Sequence[RunGroup], metric: str) -> Iterator[str]:
    """Describe the runs without a finite final value: those beside other seeds, and whole groups."""
    reason = f"No finite final value of {metric}, as after divergence"
    left_out = [
        _name_run(group, run) for group in groups for run in group.not_finite if run not in group.counted
    ]
    if left_out:
        yield f"{reason}, so these runs are left out of all means: {'; '.join(left_out)}."
    whole = [group.name for group in groups if any(run in group.not_finite for run in group.counted)]
    if whole:
        yield f"{reason}, in any run of these rows: {'; '.join(whole)}."


def _describe_unequal_rounds(groups: Sequence[RunGroup], find_row: FindRow) -> Iterator[str]:
    rounds = {
        group.name: sorted({final.round for run in group.counted if (final := find_row(run).final)})
        for group in groups
    }
    every = sorted({each for found in rounds.values() for each in found})
    if len(every) > 1:
        owners = "; ".join(f"{name}: {_join([*map(str, found)])}" for name, found in rounds.items() if found)
        yield (
            f"The final values are of different rounds: {_join([*map(str, every)])}; more rounds may be "
            f"better by themselves ({owners})."
        )


def _describe_seeds(
    groups: Sequence[RunGroup], counted: Sequence[RunGroup], baseline: int | None
) -> Iterator[str]:
    """Describe what too few seeds, and other seeds than those of the baseline, leave open."""
    if len(counted) < 2 or baseline is None:
        return
    first = groups[baseline]
    seeds = {run.seed for run in first.counted}
    others = {group.name: {run.seed for run in group.counted} for group in counted if group is not first}
    if all(len(group.counted) == 1 for group in counted):
        yield (
            "Each row has one seed only: neither a standard deviation nor a test of the difference is "
            "possible."
        )
    else:
        if without := [name for name, own in others.items() if not seeds & own]:
            yield f"No seed in common with {first.name}, and so no difference: {'; '.join(without)}."
        if unequal := [name for name, own in others.items() if seeds & own and seeds != own]:
            yield f"The difference to {first.name} is over the seeds that both have: {'; '.join(unequal)}."
    if any(own != seeds for own in others.values()):
        yield "The rows have different seeds, so their means are not comparable: there is no best row."
