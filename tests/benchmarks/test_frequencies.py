"""KDIA's Fig. 5: the frequencies of the figure are the paper's, and the page has what is computed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import frequencies
from benchmarks.frequencies import COHORT, ROUNDS, TRIFREQS, outliers, rounds, section
from benchmarks.places import PAGES
from fedsim.techniques.last_models import SINGLE_POWERS


def test_the_weights_are_the_papers_frequencies() -> None:
    """Eqs. 5 to 9, each over the clients that have come, re-computed from the rounds themselves."""
    course = list(rounds(0.5, 2506))
    assert len(course) == ROUNDS
    assert [int((seen.age == 0).sum()) for seen in course] == [COHORT] * ROUNDS
    for number in (0, 4, ROUNDS - 1):
        seen = course[number]
        visits = sum((earlier.age == 0).numpy().astype(float) for earlier in course[: number + 1])
        assert np.array_equal(seen.visits.numpy(), visits)
        came = visits > 0
        single = {
            "interval": np.exp(-seen.age.numpy().astype(float)) * came,
            "count": visits,
            "volume": seen.examples.numpy() * came,
        }
        shares = {name: values / values.sum() for name, values in single.items()}
        for name, expected in shares.items():
            np.testing.assert_allclose(seen.frequency(SINGLE_POWERS[name]), 100 * expected, rtol=1e-12)
        both = np.cbrt(np.prod(list(shares.values()), axis=0))
        np.testing.assert_allclose(seen.frequency(TRIFREQS), 100 * both / both.sum(), rtol=1e-12)


def test_outliers_lie_beyond_the_whiskers() -> None:
    """Quartiles 2.5 and 7.5 of 0 to 10: the whiskers reach from -5 to 15."""
    assert outliers(np.arange(11.0)) == 0
    assert outliers(np.array([*np.arange(11.0), 40.0])) == 1


@pytest.mark.slow
def test_the_page_has_what_is_computed() -> None:
    name, text = frequencies.NAME, section(*frequencies.measured())
    assert f"<!-- table {name} -->\n{text}\n<!-- end of table {name} -->" in (PAGES / "kdia.md").read_text(
        "utf-8"
    )
