"""Mixtures of Gaussians on a line: what a client tells of its examples' difficulties.

It tells what they are like together, and none of them by itself. The server draws from what all clients tell.
FedCL (arXiv:2211.07248), Eq. 12 and section IV-A.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FLOOR = 1e-6
"""The least variance of a component: examples may all be as difficult as each other."""

EACH = 5
"""Examples that there have to be for each component, or it would tell of them one by one."""

ROUNDING = 1e-6
"""What weights, times how many numbers there are, may fall short of a whole number by."""

ITERATIONS = 100
TOLERANCE = 1e-4
"""How little the mean log-likelihood has to rise for the fit to end."""


def fit_mixture(values: NDArray[np.float64], components: int) -> Tensor:
    """The mixture that describes these numbers, by expectation and maximisation.

    It begins with the parts of the sorted numbers, equally many in each, so that nothing is left to chance.
    Where there are too few numbers, or too few different ones, or where a component would settle on fewer
    than 5 of them, there are fewer components, and the others have weight 0: its shape says nothing of how
    many numbers there were.

    Args:
        values: `[n]`; what is not finite is left out, and fewer than 5 give weights of 0 throughout.
        components: L, at most so many.

    Returns:
        float32 `[L, 3]`: mean, variance and weight of each, by ascending means.
    """
    found, values = np.zeros((components, 3), np.float32), values[np.isfinite(values)]
    values = np.sort(values)
    for several in range(min(components, len(values) // EACH, len(np.unique(values))), 0, -1):
        rows = _expectation_maximisation(values, several) if several > 1 else _fit_one_component(values)
        if (rows[:, 2] * len(values) >= EACH - ROUNDING).all():
            found[:several] = rows
            break
    return torch.from_numpy(found)


def _fit_one_component(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([[values.mean(), max(values.var(), FLOOR), 1]])


def _expectation_maximisation(values: NDArray[np.float64], components: int) -> NDArray[np.float64]:
    from sklearn.exceptions import ConvergenceWarning  # slow to import, and needed by clients alone
    from sklearn.mixture import GaussianMixture

    parts = np.array_split(values, components)
    mixture = GaussianMixture(
        components,
        covariance_type="spherical",
        reg_covar=FLOOR,
        tol=TOLERANCE,
        max_iter=ITERATIONS,
        weights_init=np.array([len(part) for part in parts]) / len(values),
        means_init=np.array([[part.mean()] for part in parts]),
        precisions_init=np.array([1 / (part.var() + FLOOR) for part in parts]),
    )
    # With two threads the last bits depend on how the sums are cut.
    with _threads().limit(limits=1), warnings.catch_warnings():
        # After so many steps it is as good as it needs to be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(values[:, None])
    rows = np.column_stack([mixture.means_[:, 0], mixture.covariances_, mixture.weights_])
    return np.asarray(rows[np.argsort(rows[:, 0], kind="stable")])


@lru_cache(maxsize=1)
def _threads() -> Any:
    """Whoever limits the threads of linear algebra; finding the libraries takes longer than many a fit."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def draw_from_mixture(mixture: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """So many numbers out of a mixture, float64 `[count]`; NaN throughout where all weights are 0.

    Args:
        mixture: `[L, 3]`, as `fitted` gives it.
        count: how many.
        rng: decides.
    """
    mean, variance, weight = mixture.double().numpy().T
    if not weight.sum() > 0:
        return torch.full((count,), torch.nan, dtype=torch.float64)
    which = rng.choice(len(weight), count, p=weight / weight.sum())
    return torch.from_numpy(mean[which] + np.sqrt(variance[which]) * rng.standard_normal(count))


def pool_draws(draws: Tensor) -> Tensor:
    """All clients' draws as one list, in ascending order; NaN is left out.

    Args:
        draws: `[clients, count]`, NaN for who has sent no mixture.
    """
    return draws[~torch.isnan(draws)].sort().values


def quantile(pool: Tensor, level: float) -> float:
    """The `ceil(level * N)`-th of N sorted numbers, as NumPy's `inverted_cdf`; NaN of none.

    Args:
        pool: `[N]`, in ascending order.
        level: above 0, at most 1.
    """
    return float(pool[ceil(level * len(pool)) - 1]) if len(pool) else float("nan")
