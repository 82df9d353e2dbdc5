"""Which trial trains next, and the values that it gets."""

from __future__ import annotations

import math
from random import Random

import pytest

from fedsim.errors import SpecError
from jobs.tune.halving import WORST, Step, choose_step, list_rungs
from jobs.tune.sampler import PastTrial, list_grid, propose_values
from jobs.tune.space import parse_space_items, parse_spaces


@pytest.mark.parametrize(
    ("rounds", "first", "expected"),
    [
        (27, 1, [1, 3, 9, 27]),
        (30, 3, [3, 9, 30]),
        (20, 2, [2, 6, 20]),
        (5, 5, [5]),
        (1, 1, [1]),
        (4, 3, [3, 4]),
    ],
)
def test_the_last_rung_is_the_end_of_the_run(rounds: int, first: int, expected: list[int]) -> None:
    assert list_rungs(rounds, first, 3) == expected


def halve(quality: list[float], rungs: list[int]) -> list[dict[int, float]]:
    """Train one trial after another, each with the same score at every rung; return the scores."""
    scores = list[dict[int, float]]()
    while step := choose_step(scores, (), len(rungs) - 1, len(quality), 3):
        if step.trial == len(scores):
            scores.append({})
        assert step.rung == len(scores[step.trial]), "a trial never skips a rung, and never repeats one"
        scores[step.trial][step.rung] = quality[step.trial]
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_the_best_trial_trains_to_the_end_and_most_trials_do_not(seed: int) -> None:
    quality = list(map(float, range(40)))
    Random(seed).shuffle(quality)
    scores = halve(quality, rungs := [1, 3, 9, 27])
    finished = [quality[trial] for trial, reached in enumerate(scores) if 3 in reached]
    assert max(finished) == 39
    assert sum(rungs[max(reached)] for reached in scores) < 0.4 * 40 * 27


def test_the_paper_promotes_from_the_highest_rung_first() -> None:
    # Rung 0: trials 0 to 5. Rung 1: trials 0, 1 and 2, the best of which may go on.
    scores: list[dict[int, float]] = [{0: 9, 1: 9}, {0: 8, 1: 8}, {0: 7, 1: 7}, {0: 3}, {0: 2}, {0: 1}]
    assert choose_step(scores, (), 2, 9, 3) == Step(0, 2)
    assert choose_step(scores, (0,), 2, 9, 3) == Step(6, 0)
    assert choose_step(scores, (0,), 2, 6, 3) is None


def test_a_failed_trial_is_never_promoted_and_few_trials_have_a_winner() -> None:
    assert halve([WORST, WORST, WORST, 1.0], [1, 3])[3] == {0: 1.0, 1: 1.0}
    assert halve([WORST, WORST, WORST], [1, 3]) == [{0: WORST}] * 3
    assert halve([1.0, 2.0], [1, 3, 9])[1] == {0: 2.0, 1: 2.0, 2: 2.0}
    # Of three trials the promoted one fails at the end: the next best has to train to the end.
    assert choose_step([{0: 0.9, 1: WORST}, {0: 0.8}, {0: 0.7}], (), 1, 3, 3) == Step(1, 1)
    assert choose_step([{0: 0.9, 1: WORST}, {0: 0.8, 1: WORST}], (), 1, 2, 3) is None


def test_an_interrupted_trial_goes_on_before_a_new_one_begins() -> None:
    assert choose_step([{0: 1.0}, {}], (), 1, 5, 3) == Step(1, 0)
    assert choose_step([{0: 1.0}, {}], (1,), 1, 5, 3) == Step(2, 0)


def test_a_space_is_a_range_or_a_list() -> None:
    items = ["local.lr=log:1e-3..1", "a.b=uniform:-1..1.5", "c=int:1..3", "algorithm=[fedavg, {name: kdia}]"]
    spaces = parse_spaces(parse_space_items(items))
    assert [space.kind for space in spaces.values()] == ["log", "uniform", "int", "choice"]
    assert spaces["a.b"].list_ends() == [-1, 1.5]
    assert spaces["algorithm"].list_values() == ["fedavg", {"name": "kdia"}]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("log:0..1", "logarithm"),
        ("log:1..0.1", "lower one first"),
        ("int:1.5..3", "whole number"),
        ("uniform:a..b", "no number"),
        ("0.1", "neither a range nor a list"),
        ("[]", "neither a range nor a list"),
        ("[1, 1]", "twice"),
        ("uniform:0..inf", "finite"),
    ],
)
def test_a_wrong_space_is_explained(space: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse_spaces({"local.lr": space})
    assert error.value.errors[0].path == "space.local.lr"
    assert "log:0.001..1" in error.value.errors[0].hint


def test_a_grid_has_every_combination_of_listed_values() -> None:
    spaces = parse_spaces({"local.lr": [0.1, 0.2], "local.epochs": "int:1..2"})
    assert list_grid(spaces)[:3] == [
        {"local.lr": 0.1, "local.epochs": 1},
        {"local.lr": 0.1, "local.epochs": 2},
        {"local.lr": 0.2, "local.epochs": 1},
    ]
    with pytest.raises(SpecError, match="no list of values"):
        list_grid(parse_spaces({"local.lr": "log:0.1..1"}))


@pytest.mark.parametrize("method", ["bayes", "random"])
def test_the_same_past_gives_the_same_values(method: str) -> None:
    pytest.importorskip("optuna")
    spaces = parse_spaces({"lr": "log:0.001..10", "n": "int:1..4", "c": ["a", {"b": 1}]})
    past: list[PastTrial] = []
    for _ in range(14):
        drawn = propose_values(spaces, past, method, seed=1, lower_is_better=True)  # type: ignore[arg-type]
        again = propose_values(spaces, past, method, seed=1, lower_is_better=True)  # type: ignore[arg-type]
        assert drawn == again
        assert 0.001 <= drawn["lr"] <= 10
        assert drawn["n"] in (1, 2, 3, 4)
        assert drawn["c"] in ("a", {"b": 1})
        score = abs(math.log(drawn["lr"]))
        past.append(PastTrial(drawn, {1: score, 3: score} if score < 1 else {1: score}, score < 1))
    assert len({str(each.values) for each in past}) == 14


def test_values_of_trials_that_failed_are_avoided() -> None:
    """Rates above 0.1 diverge; without these trials, most of the later ones would try such rates again."""
    pytest.importorskip("optuna")
    spaces = parse_spaces({"lr": "log:0.001..10"})
    past: list[PastTrial] = []
    for _ in range(30):
        drawn = propose_values(spaces, past, "bayes", seed=0, lower_is_better=True)
        score = None if drawn["lr"] > 0.1 else abs(math.log(drawn["lr"] / 0.08))
        past.append(PastTrial(drawn, {9: score}, score is not None))
    assert sum(each.scores[9] is None for each in past[10:]) <= 10
