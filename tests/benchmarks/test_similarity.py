"""KDIA's Fig. 7: both ways of drawing labels, class by class, against an expert whose accuracy is told."""

from __future__ import annotations

import pytest

from benchmarks.similarity import central, measured
from fedsim import tree
from fedsim.algorithms import KDIA
from tests.fedsim.federations import federation
from tests.fedsim.methods import QUICK


def test_both_ways_of_drawing_labels_are_held_against_one_expert() -> None:
    population = federation(rounds=2)
    expert, accuracy = central(population, 3)
    test = population.dataset.test
    said = population.nets[0](expert, tree.borrow(test.x)).argmax(-1)
    assert accuracy == pytest.approx(float((said.numpy() == test.y).mean()))
    drawn = [
        measured(KDIA(labels=labels, **QUICK["kdia"]), population, expert) for labels in ("pass", "batch")
    ]
    assert drawn[0]["trained"]["same"] != drawn[1]["trained"]["same"]
    assert drawn[0]["untrained"] == drawn[1]["untrained"]
    for each in drawn:
        assert list(each["trained"]["classes"]) == [f"class {c}" for c in range(4)]
