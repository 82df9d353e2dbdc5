"""The picture of docs/clock.md: the numbers beside it are those of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.policies import COHORT, POLICIES, draw, make_population, read_clocks

DOCS = Path(__file__).parents[2] / "docs" / "clock.md"


@pytest.mark.slow
def test_the_text_has_the_numbers_of_the_picture(tmp_path: Path) -> None:
    population = make_population()
    found = {name: read_clocks(population, policy) for name, policy in POLICIES.items()}
    times = {name: [time for clock in clocks for time in clock.timeline] for name, clocks in found.items()}
    wait, deadline, over_selection, fedbuff = (sum(time.counts for time in each) for each in times.values())
    assert wait == COHORT * len(found["wait"])
    text = " ".join(DOCS.read_text("utf-8").split())
    assert (
        f"{wait} updates count with `wait`, {deadline} with `deadline`, {over_selection} with"
        f" `over_selection` and {fedbuff} with `fedbuff`"
    ) in text
    late = {time.client for time in times["deadline, 0.12 s"] if not time.counts}
    in_time = {time.client for time in times["deadline, 0.12 s"] if time.counts}
    *most, last = sorted(late)
    assert not late & in_time
    assert f"the slow clients {', '.join(map(str, most))} and {last} never count" in text
    draw(found, tmp_path / "policies.svg")
    assert "over_selection, 7 for 5" in (tmp_path / "policies.svg").read_text("utf-8")
