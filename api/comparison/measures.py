"""Figures of groups of runs: mean, standard deviation, and the difference from a baseline group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean, stdev
from typing import Self, TypeAlias

from pydantic import Field

from fedsim.base.statistics import PairedDifference, adjust_holm, compare_paired
from jobs.store.records import FrozenRecord

Figures: TypeAlias = Sequence[tuple[int | None, float]]
"""The seed and the figure of each run of a group that has this figure."""


class Spread(FrozenRecord):
    """A figure over the runs of a group."""

    mean: float
    deviation: float | None = Field(description="Standard deviation of the sample; null for one run.")
    values: list[float] = Field(description="One value for each run that has the figure.")

    @classmethod
    def over(cls, values: Sequence[float]) -> Self | None:
        """Compute mean and deviation; None without values."""
        if not values:
            return None
        deviation = stdev(values) if len(values) > 1 else None
        return cls(mean=fmean(values), deviation=deviation, values=list(values))


class Measure(Spread):
    """A score over the runs of a group, beside the same score of the baseline group."""

    difference: PairedDifference | None = Field(
        None,
        description="From the baseline, paired by seed; null for the baseline, and without a common seed.",
    )
    p_adjusted: float | None = Field(
        None, description="The p-value of the difference, adjusted by Holm for the number of groups."
    )
    is_best: bool = Field(
        False,
        description="Whether no group without diverged runs has a better mean; never of a group with one, "
        "nor if the groups have different seeds.",
    )


def measure_groups(
    groups: Sequence[Figures],
    baseline: int | None,
    comparable: Sequence[bool],
    lower_is_better: bool,
    diverged: Collection[int],
) -> list[Measure | None]:
    """Compute a score over each group, and its difference from the baseline group.

    Args:
        groups: the seeds and scores of each group.
        baseline: index of the baseline group; None for no differences.
        comparable: whether each group has the data of the baseline; other groups have no difference.
        lower_is_better: direction of the score.
        diverged: indices of the groups with a run whose score is not finite. None of them is the best: the
            mean is over the other runs.

    Returns:
        One measure for each group; None for a group without scores.
    """
    found = [Measure.over([score for _, score in figures]) for figures in groups]
    differences = [
        None
        if index == baseline or baseline is None or not comparable[index]
        else _compare(figures, groups[baseline])
        for index, figures in enumerate(groups)
    ]
    tested = [index for index, each in enumerate(differences) if each and each.p_value is not None]
    p_values = [each.p_value for each in differences if each and each.p_value is not None]
    adjusted = dict(zip(tested, adjust_holm(p_values), strict=True))
    sign = -1.0 if lower_is_better else 1.0
    means = [sign * each.mean for index, each in enumerate(found) if each and index not in diverged]
    has_best = len(list(filter(None, found))) > 1 and all(comparable) and _have_same_seeds(groups, diverged)
    best = max(means, default=None) if has_best else None
    return [
        each
        and each.model_copy(
            update={
                "difference": differences[index],
                "p_adjusted": adjusted.get(index),
                "is_best": sign * each.mean == best and index not in diverged,
            }
        )
        for index, each in enumerate(found)
    ]


def _have_same_seeds(groups: Sequence[Figures], diverged: Collection[int]) -> bool:
    """Return whether all groups with scores, but those with a diverged run, have scores of the same seeds."""
    seeds = {
        frozenset(seed for seed, _ in figures)
        for index, figures in enumerate(groups)
        if figures and index not in diverged
    }
    return len(seeds) <= 1


def _compare(figures: Figures, baseline: Figures) -> PairedDifference | None:
    """Compare the scores of the seeds that both groups have; None without such seeds."""
    own, other = dict(figures), dict(baseline)
    seeds = [seed for seed in own if seed is not None and seed in other]
    return compare_paired([own[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None
