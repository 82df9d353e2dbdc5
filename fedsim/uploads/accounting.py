"""Accounting: the privacy budget of many noisy rounds, by the accountants of Opacus.

A step is one Gaussian mechanism over a Poisson sample: the sum of vectors of norm at most C, plus noise of
the standard deviation z C, where z is the noise multiplier. With privacy for clients, a step is a round, and
the sample is of clients; two federations are neighbours if one has one client more. With privacy for
examples, a step is a local step, and the sample is of the examples of one client.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, isinf, isnan, sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.base.extras import import_extra
from fedsim.uploads.shuffling import compute_shuffled_epsilon
from fedsim.uploads.tree_noise import count_node_releases

AccountantName: TypeAlias = Literal["rdp", "prv"]
"""`rdp`: Renyi differential privacy (Mironov et al. 2019). `prv`: the distribution of the privacy loss,
composed numerically (Gopi et al., NeurIPS 2021), which is tighter and slower."""

PrivacyKind: TypeAlias = Literal["central", "tree", "local"]
"""Who adds noise for the privacy of clients: the server to the sum of each round (`central`) or to the
running sum of all rounds (`tree`), or each client to its own update (`local`)."""

LEAST_NOISE = 1e-6
"""With less noise, epsilon is above 10^11, and the series of Opacus may have no end."""

EXTRA = "privacy"
MAX_STEPS = 100_000

NEAR_ORDERS = 4
"""Orders on each side of the last best one that a search tries."""


@lru_cache(maxsize=1024)
def compute_epsilon(
    accountant: AccountantName, noise_multiplier: float, sample_rate: float, steps: int, delta: float
) -> float:
    """Return the epsilon that this number of rounds spends, at this delta; infinity for hardly any noise.

    Args:
        accountant: "rdp" or "prv".
        noise_multiplier: z, the standard deviation of the noise divided by the largest norm.
        sample_rate: the probability with which each client takes part in a round; 1 for all clients.
        steps: number of rounds.
        delta: above 0 and below 1.

    Raises:
        ValueError: if Opacus is not installed.
    """
    if not steps:
        return 0.0
    if noise_multiplier < LEAST_NOISE:
        return inf
    if accountant == "rdp":
        orders = tuple(_load_accountants().RDPAccountant.DEFAULT_ALPHAS)
        return _compute_rdp_epsilon(noise_multiplier, sample_rate, steps, delta, orders)[0]
    with _ignored_warnings():
        book = _load_accountants().create_accountant(mechanism=accountant)
        book.history = [(noise_multiplier, sample_rate, steps)]
        epsilon = float(book.get_epsilon(delta))
    return inf if isnan(epsilon) else max(0.0, epsilon)


def _compute_rdp_epsilon(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, orders: tuple[float, ...]
) -> tuple[float, float]:
    """Return the epsilon by Renyi divergences at these orders, and the best order."""
    analysis = _load_accountants().analysis.rdp
    with _ignored_warnings():
        rdp = steps * _compute_step_rdp(noise_multiplier, sample_rate, orders)
        epsilon, order = analysis.get_privacy_spent(orders=orders, rdp=rdp, delta=delta)
    # Far more noise than needed gives a bound below 0, and 0 is a bound, too.
    return (inf if isnan(epsilon) else max(0.0, float(epsilon))), float(order)


@lru_cache(maxsize=4096)
def _compute_step_rdp(
    noise_multiplier: float, sample_rate: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the Renyi divergences of one step; those of several steps add up."""
    found: NDArray[np.float64] = _load_accountants().analysis.rdp.compute_rdp(
        q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=orders
    )
    return found


@contextmanager
def _ignored_warnings() -> Iterator[None]:
    """Ignore warnings of Opacus within the block."""
    with warnings.catch_warnings():
        # Opacus advises more orders, also where they change epsilon in the third digit only.
        warnings.simplefilter("ignore", UserWarning)
        # Extreme noise overflows: the result is then infinity or NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def compute_worst_epsilon(
    accountant: AccountantName, mechanisms: Iterable[tuple[float, float, int]], delta: float
) -> float:
    """Return the largest epsilon of mechanisms, each (noise multiplier, sample rate, steps); 0 for none.

    The figure of `rdp` is a bound of the exact one: `prv` computes only those that may be the largest.
    """
    bounds = [(compute_epsilon("rdp", *mechanism, delta), mechanism) for mechanism in mechanisms]
    worst = 0.0
    for bound, mechanism in sorted(bounds, reverse=True):
        if bound <= worst:
            break
        worst = max(worst, compute_epsilon(accountant, *mechanism, delta))
    return worst


@lru_cache(maxsize=1024)
def find_noise_multiplier(
    accountant: AccountantName, epsilon: float, sample_rate: float, steps: int, delta: float
) -> float:
    """Return the noise multiplier with which this number of rounds spends at most epsilon, and hardly less.

    Args:
        accountant: as in `compute_epsilon`.
        epsilon: the budget.
        sample_rate: as in `compute_epsilon`.
        steps: number of rounds.
        delta: of the budget.

    Raises:
        ValueError: if Opacus is not installed, or no noise is strong enough.
    """
    low, high = 0.0, 1.0
    exceeds = _make_budget_test(accountant, epsilon, sample_rate, steps, delta)
    while exceeds(high):
        low, high = high, 2 * high
        if high > MAX_STEPS:
            raise ValueError(f"no noise keeps {steps:,} rounds within epsilon {epsilon:g}")
    return _narrow_noise(exceeds, low, high)


def _narrow_noise(exceeds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least noise multiplier between these that keeps a budget, as `high` does."""
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if exceeds(middle):
            low = middle
        else:
            high = middle
    return high


def _make_budget_test(
    accountant: AccountantName, epsilon: float, sample_rate: float, steps: int, delta: float
) -> Callable[[float], bool]:
    """Make the function that tells whether a noise multiplier spends more than epsilon.

    The divergences of all orders take long. With similar noise the best order is a similar one, and epsilon
    has one minimum over the orders: the next call tries the orders around the last best one.
    """
    if accountant != "rdp":
        return lambda noise: compute_epsilon(accountant, noise, sample_rate, steps, delta) > epsilon
    every = tuple(float(order) for order in _load_accountants().RDPAccountant.DEFAULT_ALPHAS)
    orders = every

    def exceeds(noise: float) -> bool:
        nonlocal orders
        found, best = _compute_rdp_epsilon(noise, sample_rate, steps, delta, orders)
        if orders is not every and (isinf(found) or best in (orders[0], orders[-1])):
            found, best = _compute_rdp_epsilon(noise, sample_rate, steps, delta, every)
        place = every.index(best) if best in every else 0
        orders = every[max(0, place - NEAR_ORDERS) : place + NEAR_ORDERS + 1]
        return found > epsilon

    return exceeds


def count_affordable_rounds(compute_spent: Callable[[int], float], most: int, epsilon: float) -> int:
    """Return the largest number of rounds, at most `most`, that spends at most epsilon.

    Args:
        compute_spent: returns the epsilon of a number of rounds.
        most: the largest number to try.
        epsilon: the budget.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if compute_spent(middle) > epsilon:
            high = middle - 1
        else:
            low = middle
    return low


@dataclass(frozen=True, kw_only=True)
class ClientMechanism:
    """What the accountant has to know of privacy for clients besides the noise.

    Attributes:
        kind: who adds the noise, and to what.
        cohort_size, num_clients: K and N.
        tree_rounds: with `tree`, the rounds of a tree; None for one tree over the run.
        shuffled: with `local`, whether a shuffler hides which client sent an update.
    """

    kind: PrivacyKind
    cohort_size: int
    num_clients: int
    tree_rounds: int | None = None
    shuffled: bool = False

    @property
    def period(self) -> int:
        """With `tree`, the number of rounds in which each client takes part once."""
        return ceil(self.num_clients / self.cohort_size)

    def describe(self, noise_multiplier: float, rounds: int) -> tuple[float, float, int]:
        """Return the noise multiplier, the sample rate and the steps that stand for so many rounds.

        With local privacy the server sees each update by itself: no sampling hides it, and another update
        instead of it changes it by up to 2 C. With a tree, all its nodes are one release without sampling.
        """
        if self.kind == "local":
            return noise_multiplier / 2, 1.0, rounds
        if self.kind == "tree":
            releases = count_node_releases(rounds, self.period, self.tree_rounds)
            return noise_multiplier / sqrt(max(1, releases)), 1.0, min(1, releases)
        return noise_multiplier, self.cohort_size / self.num_clients, rounds

    def compute_epsilon(
        self, accountant: AccountantName, noise_multiplier: float, rounds: int, delta: float
    ) -> float:
        """Return the epsilon that so many rounds spend; infinity for hardly any noise."""
        spent = compute_epsilon(accountant, *self.describe(noise_multiplier, rounds), delta)
        if not self.shuffled:
            return spent
        # The server learns no more by a shuffler: both figures hold.
        return min(spent, compute_shuffled_epsilon(noise_multiplier, self.cohort_size, rounds, delta))

    def find_noise_multiplier(
        self, accountant: AccountantName, epsilon: float, rounds: int, delta: float
    ) -> float:
        """Return the noise multiplier with which so many rounds spend at most epsilon, and hardly less."""
        unit, rate, steps = self.describe(1.0, rounds)
        found = find_noise_multiplier(accountant, epsilon, rate, steps, delta) / unit
        if not self.shuffled:
            return found

        def exceeds(noise: float) -> bool:
            return compute_shuffled_epsilon(noise, self.cohort_size, rounds, delta) > epsilon

        return _narrow_noise(exceeds, 0.0, found)


def count_batches(num_examples: int, batch_size: int) -> int:
    """Return m, the number of private steps in an epoch, at least 1; each has the sample rate 1 / m.

    A batch has num_examples / m examples in the mean, which is at most `batch_size`.
    """
    return max(1, ceil(num_examples / batch_size))


def _load_accountants() -> Any:
    import_extra("opacus", EXTRA)
    return import_extra("opacus.accountants", EXTRA)
