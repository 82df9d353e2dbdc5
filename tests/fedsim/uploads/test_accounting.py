"""The accountants: published figures, exact values, composition, and the search for noise."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from fedsim.uploads.accounting import (
    ClientMechanism,
    PrivacyKind,
    compute_epsilon,
    compute_worst_epsilon,
    count_affordable_rounds,
    find_noise_multiplier,
)

pytest.importorskip("opacus")


def exact_gaussian_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Of full participation, by Balle and Wang (ICML 2018, Theorem 8) for the mechanism of all steps."""
    mu = sqrt(steps) / noise_multiplier

    def surplus(epsilon: float) -> float:
        near = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return float(near - delta)

    return float(brentq(surplus, 0, 100))


def test_the_published_setting_of_tensorflow_privacy() -> None:
    """N 60,000, batches of 256, noise 1.12, 60 epochs, delta 1e-5: epsilon 2.92 at order 9 (its tutorial)."""
    from opacus.accountants.analysis.rdp import compute_rdp

    rate, steps = 256 / 60_000, 14_062
    orders = [float(order) for order in range(2, 64)]
    rdp = np.array(compute_rdp(q=rate, noise_multiplier=1.12, steps=steps, orders=orders))
    old = rdp + np.log(1e5) / (np.array(orders) - 1)  # the conversion of that time (Mironov 2017)
    assert (round(old.min(), 2), orders[old.argmin()]) == (2.92, 9)
    now = compute_epsilon("rdp", 1.12, rate, steps, 1e-5)
    assert compute_epsilon("prv", 1.12, rate, steps, 1e-5) < now < old.min()
    assert now == pytest.approx(2.52, abs=0.01)


@pytest.mark.parametrize(("noise", "steps"), [(5.0, 20), (2.0, 1), (30.0, 100)])
def test_with_all_clients_prv_is_exact_and_rdp_above_it(noise: float, steps: int) -> None:
    exact = exact_gaussian_epsilon(noise, steps, 1e-5)
    assert exact <= compute_epsilon("prv", noise, 1.0, steps, 1e-5) <= exact + 0.021
    assert exact <= compute_epsilon("rdp", noise, 1.0, steps, 1e-5) <= 1.25 * exact


def test_several_payloads_are_one_mechanism() -> None:
    # Two releases with sqrt(2) times the noise are one release: joint clipping covers all payloads.
    one = compute_epsilon("rdp", 3.0, 1.0, 1, 1e-5)
    assert compute_epsilon("rdp", 3.0 * sqrt(2), 1.0, 2, 1e-5) == pytest.approx(one)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 8.0, 100.0])
def test_noise_is_found_that_spends_the_budget(epsilon: float) -> None:
    noise = find_noise_multiplier("rdp", epsilon, 0.1, 50, 1e-5)
    assert 0.998 * epsilon < compute_epsilon("rdp", noise, 0.1, 50, 1e-5) <= epsilon
    steps = count_affordable_rounds(
        lambda rounds: compute_epsilon("rdp", noise, 0.1, rounds, 1e-5), 200, epsilon
    )
    assert steps in (50, 51)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_a_search_among_few_orders_finds_what_a_search_among_all_finds(rate: float) -> None:
    low, high = 0.0, 1.0
    while compute_epsilon("rdp", high, rate, 30, 1e-5) > 2.0:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        exceeds = compute_epsilon("rdp", middle, rate, 30, 1e-5) > 2.0
        low, high = (middle, high) if exceeds else (low, middle)
    assert find_noise_multiplier("rdp", 2.0, rate, 30, 1e-5) == high


def test_the_worst_of_several_mechanisms() -> None:
    several = [(1.0, 0.1, 10), (0.7, 0.01, 100), (2.0, 1.0, 2)]
    each = [compute_epsilon("prv", *mechanism, 1e-5) for mechanism in several]
    assert compute_worst_epsilon("prv", several, 1e-5) == max(each)
    assert compute_worst_epsilon("rdp", [], 1e-5) == 0


def test_extremes() -> None:
    assert compute_epsilon("rdp", 0.0, 0.1, 5, 1e-5) == inf
    assert compute_epsilon("rdp", 1.0, 0.1, 0, 1e-5) == 0
    assert compute_epsilon("rdp", 1e-160, 0.2, 10, 1e-5) == inf  # the series of Opacus has no end here


def test_what_the_accountant_has_to_know_of_every_kind() -> None:
    def describe(kind: PrivacyKind, rounds: int) -> tuple[float, float, int]:
        return ClientMechanism(kind=kind, cohort_size=10, num_clients=100).describe(4.0, rounds)

    assert describe("local", 7) == (2.0, 1.0, 7)
    assert describe("central", 7) == (4.0, 0.1, 7)
    # Round 7 completes nodes of one, two and four rounds: a client of the first rounds is in three of them.
    assert describe("tree", 7) == (4.0 / sqrt(3), 1.0, 1)
    assert compute_epsilon("rdp", *describe("tree", 0), 1e-5) == 0
