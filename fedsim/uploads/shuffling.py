"""Shuffling: the budget of clients whose noisy updates reach the server without their names, in random order.

Feldman, McMillan, Talwar, FOCS 2021, arXiv:2012.12803. Each of n clients adds Gaussian noise to its update. A
shuffler passes the updates on, so that the server does not know who sent which. Theorem 3.8: if each update
is (epsilon_0, delta_0)-private and epsilon_0 <= ln(n / (16 ln(2 / delta))), a round is

    (epsilon, delta + (exp(epsilon) + 1) (1 + exp(-epsilon_0) / 2) n delta_0)-private with
    epsilon = ln(1 + (exp(epsilon_0) - 1) / (exp(epsilon_0) + 1)
                     (8 sqrt(exp(epsilon_0) ln(4 / delta) / n) + 8 exp(epsilon_0) / n))

Rounds are composed by the optimal theorem for mechanisms of which only (epsilon, delta) is known: Kairouz,
Oh, Viswanath, ICML 2015, arXiv:1311.0776, Theorem 3.3.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, log, log1p, sqrt

import numpy as np
import scipy

SEARCH_STEPS = 60


@lru_cache(maxsize=1024)
def compute_shuffled_epsilon(noise_multiplier: float, clients: int, rounds: int, delta: float) -> float:
    """Return the epsilon of shuffled rounds, in all of which a client takes part.

    A half of delta is for the composition, a quarter for the shuffling, and a quarter for the noise.

    Args:
        noise_multiplier: z, the standard deviation of the noise on an update divided by the largest norm.
        clients: n, the number of updates in a round.
        rounds: number of rounds.
        delta: above 0 and below 1.

    Returns:
        Epsilon; infinity if the theorem says nothing, because there are too few clients or too little noise.

    Examples:
        >>> round(compute_shuffled_epsilon(22.0, 100_000, 100, 1e-5), 2)
        1.86
        >>> compute_shuffled_epsilon(22.0, 100, 100, 1e-5)
        inf
    """
    if not rounds:
        return 0.0
    part = delta / (4 * rounds)
    local = _find_local_epsilon(noise_multiplier, clients, part)
    return compose_rounds(min(local, amplify(local, clients, part)), rounds, delta / 2)


def amplify(local_epsilon: float, clients: int, delta: float) -> float:
    """Return the epsilon of one shuffled round of `local_epsilon`-private updates; infinity for too few."""
    if local_epsilon > _find_largest_local_epsilon(clients, delta):
        return inf
    grown = exp(local_epsilon)
    spread = 8 * sqrt(grown * log(4 / delta) / clients) + 8 * grown / clients
    return log1p((grown - 1) / (grown + 1) * spread)


def _find_largest_local_epsilon(clients: int, delta: float) -> float:
    return log(clients / (16 * log(2 / delta)))


def _find_local_epsilon(noise_multiplier: float, clients: int, delta: float) -> float:
    """Return the least epsilon_0 whose delta_0 adds no more than `delta` to a round; infinity for none."""
    low, high = 0.0, _find_largest_local_epsilon(clients, delta)

    def exceeds(epsilon: float) -> bool:
        rest = compute_gaussian_delta(noise_multiplier, epsilon)
        return (exp(epsilon) + 1) * (1 + exp(-epsilon) / 2) * clients * rest > delta

    if high <= 0 or exceeds(high):
        return inf
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def compute_gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the delta of one noisy update at this epsilon (Balle and Wang, ICML 2018, Theorem 8).

    Two updates of norm C differ by up to 2 C.
    """
    if not noise_multiplier:
        return 1.0
    ratio = 2 / noise_multiplier
    below, above = scipy.special.ndtr([ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio])
    return float(below - exp(epsilon) * above)


def compose_rounds(epsilon: float, rounds: int, delta: float) -> float:
    """Return the epsilon of rounds that have this epsilon each, with this delta for the composition.

    Returns:
        (rounds - 2 i) epsilon, for the largest i that delta allows.
    """
    if epsilon == inf:
        return inf
    low, high = 0, rounds // 2
    while low < high:
        middle = (low + high + 1) // 2
        if _compute_composed_delta(epsilon, rounds, middle) > delta:
            high = middle - 1
        else:
            low = middle
    return (rounds - 2 * low) * epsilon


def _compute_composed_delta(epsilon: float, rounds: int, index: int) -> float:
    """Return delta_i of Theorem 3.3, computed in logarithms."""
    each = np.arange(index)
    log_factorial = scipy.special.gammaln
    choices = log_factorial(rounds + 1) - log_factorial(each + 1) - log_factorial(rounds - each + 1)
    terms = choices + (rounds - each) * epsilon + np.log(-np.expm1(-2 * (index - each) * epsilon))
    return float(np.exp(scipy.special.logsumexp(terms) - rounds * np.logaddexp(0, epsilon)))
