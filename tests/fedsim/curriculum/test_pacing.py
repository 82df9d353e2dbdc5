"""The pacing families: where they begin and end, and what lies between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.curriculum.pacing import FAMILIES, count_open

SHARES = st.floats(0, 1)
KINDS = st.sampled_from(sorted(FAMILIES))


@given(
    st.sampled_from(sorted(FAMILIES)), st.floats(0.01, 1), SHARES, st.integers(1, 3000), st.integers(1, 900)
)
def test_every_family_goes_from_nb_to_n(family: str, a: float, b: float, n: int, steps: int) -> None:
    done = np.arange(steps + 1) / steps
    counts = count_open(family, a, b, n, done)
    assert counts[0] == max(1, math.floor(round(n * b, 6)))
    assert count_open(family, a, b, n, np.array([a]))[0] == n
    assert (counts[done >= a] == n).all()
    assert (np.diff(counts) >= 0).all()
    assert counts.max() <= n


@given(KINDS, SHARES, SHARES, st.integers(1, 60), st.integers(1, 80))
def test_at_least_a_batch_is_open_or_everything(family: Any, a: float, b: float, n: int, batch: int) -> None:
    counts = count_open(family, a, b, n, np.linspace(0, 1, 20), least=batch)
    assert counts.min() >= min(n, batch)
    assert counts.max() <= n


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_is_open_from_the_start_without_a_pace(family: Any) -> None:
    done = np.arange(50) / 50
    assert (count_open(family, 0.0, 0.3, 71, done) == 71).all()
    assert (count_open(family, 0.8, 1.0, 71, done) == 71).all()


def test_the_formulas_of_the_paper_put_right() -> None:
    """N = 500, a = 0.8, b = 0.2, T = 100, so a T = 80; at t = 20, by hand:

    linear 100 + 400/4 = 200; quadratic 100 + 400/16 = 125; root 100 + 400/2 = 300;
    exponential 100 + 400 (e^2.5 - 1)/(e^10 - 1) = 100.2; step 100.
    """
    expected = {"linear": 200, "quadratic": 125, "root": 300, "exponential": 100, "step": 100}
    family: Any
    for family, count in expected.items():
        assert count_open(family, 0.8, 0.2, 500, np.array([0.2]))[0] == count
        just_before, at = count_open(family, 0.8, 0.2, 500, np.array([0.79, 0.8]))
        assert at == 500
        assert just_before < 500
    exponential = count_open("exponential", 0.8, 0.2, 500, np.array([0.6]))[0]
    assert exponential == math.floor(100 + 400 * (math.e**7.5 - 1) / (math.e**10 - 1))
