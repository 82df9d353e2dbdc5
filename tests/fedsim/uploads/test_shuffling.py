"""Budgets of shuffled updates, held against exact budgets of small mechanisms."""

from __future__ import annotations

from math import comb, exp, inf

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedsim.uploads.accounting import ClientMechanism
from fedsim.uploads.shuffling import (
    amplify,
    compose_rounds,
    compute_gaussian_delta,
    compute_shuffled_epsilon,
)


def measure_delta(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """The exact delta of two distributions at this epsilon."""
    return float(np.maximum(first - exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("local_epsilon", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("clients", [5_000, 50_000])
def test_shuffled_randomised_response_keeps_the_budget(local_epsilon: float, clients: int) -> None:
    """Each client tells a bit, the wrong one with the probability 1 / (1 + e^epsilon_0); the count remains.

    All others hold 0, and one client 0 or 1: the two counts are known exactly.
    """
    delta, wrong = 1e-6, 1 / (1 + exp(local_epsilon))
    others = binom.pmf(np.arange(-1, clients + 1), clients - 1, wrong)
    zero = (1 - wrong) * others[1:] + wrong * others[:-1]
    one = wrong * others[1:] + (1 - wrong) * others[:-1]
    epsilon = amplify(local_epsilon, clients, delta)
    assert max(measure_delta(zero, one, epsilon), measure_delta(one, zero, epsilon)) <= delta
    assert epsilon < local_epsilon or clients < 10_000


def test_a_gaussian_update_has_the_delta_of_its_integral() -> None:
    grid = np.linspace(-12, 12, 400_001)
    step = grid[1] - grid[0]
    for noise, epsilon in ((1.0, 1.0), (2.0, 0.3), (4.0, 1.5)):
        first, second = (norm.pdf(grid, centre, noise / 2) * step for centre in (0.5, -0.5))
        expected = measure_delta(first, second, epsilon)
        assert compute_gaussian_delta(noise, epsilon) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("rounds", "epsilon", "delta"), [(1, 0.3, 1e-6), (6, 0.5, 0.05), (40, 0.1, 1e-4)])
def test_composed_rounds_have_the_budget_of_randomised_response(
    rounds: int, epsilon: float, delta: float
) -> None:
    """The worst mechanism of this epsilon is randomised response: its rounds are a binomial count."""
    right = exp(epsilon) / (1 + exp(epsilon))
    first = np.array([comb(rounds, k) * right**k * (1 - right) ** (rounds - k) for k in range(rounds + 1)])
    found = compose_rounds(epsilon, rounds, delta)
    assert measure_delta(first, first[::-1], found) <= delta * (1 + 1e-9)
    # The next value of the theorem would have more.
    assert found == 0 or measure_delta(first, first[::-1], found - 2 * epsilon) > delta


def test_rounds_clients_and_noise_change_the_budget_in_their_directions() -> None:
    def spend(noise: float = 20.0, clients: int = 30_000, rounds: int = 50) -> float:
        return compute_shuffled_epsilon(noise, clients, rounds, 1e-5)

    assert spend(rounds=0) == 0
    assert spend(clients=100) == spend(noise=0.1) == spend(noise=0.0) == inf
    assert spend(rounds=10) < spend() < spend(rounds=100)
    assert spend(clients=100_000) < spend() < spend(noise=15.0)


def test_noise_is_found_that_spends_the_budget_with_a_shuffler() -> None:
    pytest.importorskip("opacus")
    clients = ClientMechanism(kind="local", cohort_size=30_000, num_clients=30_000, shuffled=True)
    found = clients.find_noise_multiplier("rdp", 1.5, 50, 1e-5)
    assert 1.5 * 0.995 < compute_shuffled_epsilon(found, 30_000, 50, 1e-5) <= 1.5


def test_a_shuffler_never_costs_budget() -> None:
    pytest.importorskip("opacus")
    for clients, is_smaller in ((1_000, False), (100_000, True)):
        alone, shuffled = (
            ClientMechanism(kind="local", cohort_size=clients, num_clients=clients, shuffled=given)
            for given in (False, True)
        )
        spent = [each.compute_epsilon("rdp", 22.0, 100, 1e-5) for each in (alone, shuffled)]
        noise = [each.find_noise_multiplier("rdp", 4.0, 100, 1e-5) for each in (alone, shuffled)]
        assert (spent[1] < spent[0], noise[1] < noise[0]) == (is_smaller, is_smaller)
        assert spent[1] <= spent[0]
