"""Statistics of a comparison: differences paired by seed, with intervals and p-values of SciPy.

Two runs with the same seed share their data, partition and initial model. Their difference varies less from
seed to seed than the runs do, so comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Of the intervals."""

SIGNIFICANCE = 0.05
"""Level of the two-sided test for whose power pairs are counted."""

POWER = 0.8
"""The probability that this test finds a difference."""

MOST_PAIRS = 1000
"""Beyond this number of pairs `count_pairs_to_tell` answers None: nobody runs as many seeds."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two groups of runs, seed by seed.

    Attributes:
        mean: of the differences.
        deviation: their sample standard deviation; None for one pair.
        low, high: ends of the confidence interval of the mean; None without one.
        p_value: of the two-sided paired t-test; None without an interval.
        pairs: number of pairs.
        confidence: of the interval, such as 0.95.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    p_value: float | None
    pairs: int
    confidence: float

    @property
    def sign(self) -> int:
        """1 if the interval is above 0, -1 if it is below 0, 0 if it includes 0 or there is no interval."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def compare_paired(values: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """Compare two groups of runs by the paired t-test.

    Args:
        values: one figure per seed.
        baseline: figures of the same seeds in the same order.

    Returns:
        The mean of `values - baseline` with its interval. One pair has no interval, and neither have equal
        differences other than 0: scores on a grid may agree by chance, and a t-test would call this certain.
        If all differences are 0, the interval is 0 and the p-value 1.

    Raises:
        ValueError: if there are no pairs, the lengths differ, or a figure is not finite.

    Example:
        >>> difference = compare_paired([0.82, 0.85, 0.81], [0.80, 0.81, 0.80])
        >>> f"{difference.mean:.3f} [{difference.low:.3f}, {difference.high:.3f}] p={difference.p_value:.2f}"
        '0.023 [-0.015, 0.061] p=0.12'
    """
    if len(values) != len(baseline) or not len(values):
        raise ValueError(
            f"{len(values)} figures and {len(baseline)} of the baseline: give one of each per seed"
        )
    import numpy as np  # missing where only the client is installed

    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if not np.isfinite(differences).all():
        raise ValueError("a figure is not finite: leave out the runs that diverged, and say so")
    mean, pairs = float(differences.mean()), len(differences)
    if pairs == 1:
        return PairedDifference(mean, None, None, None, None, pairs, CONFIDENCE)
    deviation = float(differences.std(ddof=1))
    # Equal differences leave rounding errors in the deviation, of which a t-test would make a tiny p-value.
    error = 1e-12 * max(1.0, float(np.abs(values).max()), float(np.abs(baseline).max()))
    if deviation <= error:
        if abs(mean) <= error:
            return PairedDifference(0.0, 0.0, 0.0, 0.0, 1.0, pairs, CONFIDENCE)
        return PairedDifference(mean, 0.0, None, None, None, pairs, CONFIDENCE)
    from scipy import stats  # slow to import

    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return PairedDifference(
        mean, deviation, float(interval.low), float(interval.high), float(test.pvalue), pairs, CONFIDENCE
    )


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of one table for their number, by Holm's step-down method (Holm, 1979).

    Args:
        p_values: in any order.

    Returns:
        The adjusted p-values in the same order, at most 1.

    Example:
        >>> adjust_holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    count, highest = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, position in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (count - rank) * p_values[position]))
        adjusted[position] = highest
    return adjusted


def count_pairs_to_tell(difference: PairedDifference) -> int | None:
    """Count the seeds with which a paired t-test would find this difference, if it is the true one.

    Args:
        difference: as it was measured, with two pairs or more.

    Returns:
        The smallest number of pairs; None if the difference has no deviation to compute it from, is 0, or
        would need more than 1,000 pairs.
    """
    if not difference.deviation or difference.mean == 0:
        return None
    effect = abs(difference.mean) / difference.deviation
    high = 2
    while _compute_power(effect, high) < POWER:
        if high == MOST_PAIRS:
            return None
        high = min(2 * high, MOST_PAIRS)
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        if _compute_power(effect, middle) >= POWER:
            high = middle
        else:
            low = middle + 1
    return low


def _compute_power(effect: float, pairs: int) -> float:
    """The power of a two-sided paired t-test for a mean of `effect` standard deviations."""
    from scipy import stats  # slow to import

    freedom, shift = pairs - 1, effect * math.sqrt(pairs)
    critical = stats.t.ppf(1 - SIGNIFICANCE / 2, freedom)
    # The other tail, a difference found in the wrong direction, is negligible, and in SciPy often NaN.
    return float(stats.nct.sf(critical, freedom, shift))
