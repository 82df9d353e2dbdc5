"""Policies: whose updates count, by hand."""

from __future__ import annotations

import pytest

from fedsim.clock.policies import Deadline, OverSelection, Tiers, Wait

ARRIVALS = {3: 4.0, 5: 1.0, 8: 9.0, 9: 4.0}


def test_the_server_waits_for_all() -> None:
    assert Wait().decide(ARRIVALS, {}, 4) == ((3, 5, 8, 9), 0.0)
    assert Wait().decide(ARRIVALS, {2: 12.0}, 5) == ((3, 5, 8, 9), 12.0)


def test_a_deadline_leaves_late_clients_out() -> None:
    assert Deadline(seconds=4).decide(ARRIVALS, {}, 4) == ((3, 5, 9), 4.0)
    assert Deadline(seconds=20).decide(ARRIVALS, {}, 4) == ((3, 5, 8, 9), 9.0)
    # The server notices the loss of client 2 after 6 s, and then nobody is missing.
    assert Deadline(seconds=20).decide({5: 1.0}, {2: 6.0}, 2) == ((5,), 6.0)
    assert Deadline(seconds=4).decide({5: 1.0}, {2: 6.0}, 2) == ((5,), 4.0)


def test_without_a_client_in_time_the_first_one_counts() -> None:
    assert Deadline(seconds=0.5).decide(ARRIVALS, {}, 4) == ((5,), 0.5)


def test_over_selection_takes_the_first_clients() -> None:
    assert OverSelection().decide(ARRIVALS, {}, 2) == ((3, 5), 0.0)  # 3 and 9 are equal: the lower number
    assert OverSelection().decide(ARRIVALS, {}, 3) == ((3, 5, 9), 0.0)
    assert OverSelection().decide(ARRIVALS, {1: 30.0}, 4) == ((3, 5, 8, 9), 0.0)
    # With a client too few, the server waits until it knows that the others vanished.
    assert OverSelection().decide(ARRIVALS, {1: 30.0}, 5) == ((3, 5, 8, 9), 30.0)


@pytest.mark.parametrize(
    ("factor", "size", "asked"), [(1.3, 10, 13), (1.3, 3, 4), (1.1, 10, 11), (1.0, 7, 7)]
)
def test_over_selection_asks_more_clients(factor: float, size: int, asked: int) -> None:
    policy = OverSelection(factor=factor)
    assert policy.count_asked(size, 100) == asked
    assert policy.count_asked(size, size) == size


def test_probabilities_of_tiers() -> None:
    assert Tiers().find_fault() is None
    assert Tiers(count=2, probabilities=(0.9, 0.1)).find_fault() is None
    assert Tiers(count=3, probabilities=(0.9, 0.1)).find_fault()
    assert Tiers(count=2, probabilities=(0.0, 0.0)).find_fault()
