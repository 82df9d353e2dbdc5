"""Statistics of a comparison against SciPy and figures computed by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fedsim.base.statistics import adjust_holm, compare_paired, count_pairs_to_tell

VALUES = [0.82, 0.85, 0.81, 0.86]
BASELINE = [0.80, 0.81, 0.80, 0.79]


def test_a_paired_difference_is_that_of_scipy():
    difference = compare_paired(VALUES, BASELINE)
    test = stats.ttest_rel(VALUES, BASELINE)
    interval = test.confidence_interval(0.95)
    assert difference.mean == pytest.approx(0.035)
    assert difference.p_value == pytest.approx(test.pvalue, abs=1e-12)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert (difference.pairs, difference.sign) == (4, 0)


def test_the_sign_is_told_only_by_an_interval_without_0():
    assert compare_paired([1.0, 1.1, 1.05], [0.0, 0.0, 0.0]).sign == 1
    assert compare_paired([0.0, 0.0, 0.0], [1.0, 1.1, 1.05]).sign == -1
    assert compare_paired([1.0], [0.0]).sign == 0


def test_equal_differences_have_no_interval_unless_they_are_0():
    difference = compare_paired([0.3, 0.4, 0.5], [0.1, 0.2, 0.3])
    assert difference.mean == pytest.approx(0.2)
    assert (difference.low, difference.high, difference.p_value, difference.sign) == (None, None, None, 0)
    assert count_pairs_to_tell(difference) is None
    same = compare_paired([0.3, 0.4], [0.3, 0.4])
    assert (same.low, same.high, same.p_value) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "baseline", "said"),
    [([], [], "0 figures"), ([1.0], [1.0, 2.0], "1 figures and 2"), ([math.nan], [1.0], "not finite")],
)
def test_figures_that_make_no_pairs_are_refused(values, baseline, said):
    with pytest.raises(ValueError, match=said):
        compare_paired(values, baseline)


def test_holm_multiplies_by_the_hypotheses_that_are_left():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([0.9, 0.8]) == [1.0, 1.0]
    assert adjust_holm([]) == []


def test_the_number_of_seeds_is_that_of_the_published_power_tables():
    """An effect of 0.5 standard deviations needs 34 pairs for a power of 0.8 (Cohen's d tables; G*Power)."""
    wide = compare_paired([1.0, 0.0], [0.0, 0.0])
    half = type(wide)(0.5, 1.0, None, None, None, 3, 0.95)
    assert count_pairs_to_tell(half) == 34
    assert count_pairs_to_tell(type(wide)(1.0, 1.0, None, None, None, 3, 0.95)) == 10
    # SciPy's other tail is NaN here. A simulation of two pairs has a power of 0.61.
    assert count_pairs_to_tell(type(wide)(7.83, 1.0, None, None, None, 2, 0.95)) == 3
    assert count_pairs_to_tell(type(wide)(100.0, 1.0, None, None, None, 3, 0.95)) == 2
    assert count_pairs_to_tell(type(wide)(0.0, 1.0, None, None, None, 3, 0.95)) is None
    assert count_pairs_to_tell(type(wide)(1e-4, 1.0, None, None, None, 3, 0.95)) is None
