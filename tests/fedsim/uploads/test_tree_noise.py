"""Tree noise: its sums over rounds, its size, and the budget of the nodes against published figures."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest

from fedsim.base import rng
from fedsim.uploads.accounting import ClientMechanism, compute_epsilon
from fedsim.uploads.tree_noise import count_node_releases, draw_round_noise, list_nodes

pytest.importorskip("opacus")


def test_the_nodes_of_a_running_sum_cover_every_round_once() -> None:
    for rounds in range(70):
        covered = [
            number
            for level, index in list_nodes(rounds)
            for number in range(index << level, (index + 1) << level)
        ]
        assert covered == list(range(rounds))
        assert len(list_nodes(rounds)) == rounds.bit_count()


@pytest.mark.parametrize("tree_rounds", [None, 5])
def test_the_noise_of_the_running_sum_is_that_of_its_nodes(tree_rounds: int | None) -> None:
    """The nodes of round 13: rounds 1 to 8, 9 to 12, and 13; with trees of 5 rounds: 5, 5, and 3."""
    total = np.zeros(6)
    for number in range(13):
        total += draw_round_noise(4, number, 6, tree_rounds)
    trees = [list_nodes(13)] if tree_rounds is None else [list_nodes(5), list_nodes(5), list_nodes(3)]
    nodes = [(tree, *node) for tree, found in enumerate(trees) for node in found]
    drawn = [rng.stream(4, "privacy tree", *node).standard_normal(6) for node in nodes]
    assert total == pytest.approx(np.sum(drawn, axis=0), abs=1e-12)


def test_the_noise_grows_with_the_nodes_and_not_with_the_rounds() -> None:
    """Of 40,000 numbers the estimate is right to 0.4 %: noise too small by 3 % would fail."""
    total = np.zeros(40_000)
    for number in range(20):
        total += draw_round_noise(1, number, len(total))
        assert np.std(total) == pytest.approx(sqrt((number + 1).bit_count()), rel=0.03)


@pytest.mark.parametrize(("rounds", "period"), [(1, 1), (8, 1), (11, 3), (13, 4), (20, 7), (6, 9)])
@pytest.mark.parametrize("tree_rounds", [None, 1, 4, 5])
def test_the_sensitivity_is_that_of_the_matrix_of_nodes(
    rounds: int, period: int, tree_rounds: int | None
) -> None:
    length, matrix = tree_rounds or rounds, []
    for first in range(0, rounds, length):
        last, level = min(first + length, rounds), 0
        while first + 2**level <= last:
            for begin in range(first, last - 2**level + 1, 2**level):
                matrix.append([float(begin <= number < begin + 2**level) for number in range(rounds)])
            level += 1
    clients = [[float(number % period == turn) for number in range(rounds)] for turn in range(period)]
    expected = max(np.square(np.array(matrix) @ client).sum() for client in np.array(clients))
    assert count_node_releases(rounds, period, tree_rounds) == expected


@pytest.mark.parametrize(
    ("noise", "published", "now"), [(1.13, 19.74, 18.709609893772754), (8.83, 2.04, 1.7731924496178202)]
)
def test_the_published_setting_of_dp_ftrl(noise: float, published: float, now: float) -> None:
    """StackOverflow, 1,600 rounds, every client once, delta 1e-6 (Kairouz et al.).

    `now` is by `SingleEpochTreeAggregationDpEvent` of dp-accounting 0.6.0.
    """
    releases = count_node_releases(1600, 1600)
    orders = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
    old = orders * releases / (2 * noise**2) + log(1e6) / (orders - 1)  # as in the paper (Mironov 2017)
    assert old.min() == pytest.approx(published, abs=0.01)
    mechanism = ClientMechanism(kind="tree", cohort_size=1, num_clients=1600).describe(noise, 1600)
    assert compute_epsilon("rdp", *mechanism, 1e-6) == pytest.approx(now, rel=1e-6)
    assert compute_epsilon("prv", *mechanism, 1e-6) < now


@pytest.mark.parametrize("rounds", [3, 8, 11, 19])
def test_with_every_client_in_every_round_all_nodes_count(rounds: int) -> None:
    """The figures of dp-accounting: a complete tree over 2^d rounds has 2^d (2^(d+1) - 1)."""
    expected = sum(2**level * (2 ** (level + 1) - 1) for level, _ in list_nodes(rounds))
    assert count_node_releases(rounds, 1) == expected


def test_another_tree_for_every_pass_costs_less_than_one_tree_over_all() -> None:
    assert count_node_releases(160, 16) > count_node_releases(160, 16, 16) == 10 * 5
