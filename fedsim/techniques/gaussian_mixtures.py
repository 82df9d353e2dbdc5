"""Mixtures of Gaussians on a line: a client's report of its examples' difficulties.

The mixture describes the examples together, not one by one. The server draws numbers from all clients'
mixtures. FedCL (arXiv:2211.07248), Eq. 12 and section IV-A.
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

LEAST_VARIANCE = 1e-6
"""The least variance of a component: examples may all have the same difficulty."""

EXAMPLES_PER_COMPONENT = 5
"""Least number of examples for each component; with fewer, the mixture would reveal single examples."""

ROUNDING = 1e-6
"""Rounding error that is allowed when a weight times the number of values is compared with a whole number."""

ITERATIONS = 100
TOLERANCE = 1e-4
"""Rise of the mean log-likelihood below which the fit ends."""


def fit_mixture(values: NDArray[np.float64], components: int) -> Tensor:
    """Fit a mixture to these numbers by expectation and maximisation.

    The fit starts from equal parts of the sorted numbers and is deterministic. There are fewer components,
    and the others have the weight 0, if there are too few numbers or too few different ones, or if a
    component would describe fewer than 5 of them. The shape of the result does not reveal the number of
    values.

    Args:
        values: `[n]`; values that are not finite are left out, and fewer than 5 values give only weights of
            0.
        components: L, the largest number of components.

    Returns:
        float32 `[L, 3]`: mean, variance and weight of each, by ascending means.
    """
    found, values = np.zeros((components, 3), np.float32), values[np.isfinite(values)]
    values = np.sort(values)
    for several in range(
        min(components, len(values) // EXAMPLES_PER_COMPONENT, len(np.unique(values))), 0, -1
    ):
        rows = _expectation_maximisation(values, several) if several > 1 else _fit_one_component(values)
        if (rows[:, 2] * len(values) >= EXAMPLES_PER_COMPONENT - ROUNDING).all():
            found[:several] = rows
            break
    return torch.from_numpy(found)


def _fit_one_component(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([[values.mean(), max(values.var(), LEAST_VARIANCE), 1]])


def _expectation_maximisation(values: NDArray[np.float64], components: int) -> NDArray[np.float64]:
    from sklearn.exceptions import ConvergenceWarning  # slow to import, and needed by clients alone
    from sklearn.mixture import GaussianMixture

    parts = np.array_split(values, components)
    mixture = GaussianMixture(
        components,
        covariance_type="spherical",
        reg_covar=LEAST_VARIANCE,
        tol=TOLERANCE,
        max_iter=ITERATIONS,
        weights_init=np.array([len(part) for part in parts]) / len(values),
        means_init=np.array([[part.mean()] for part in parts]),
        precisions_init=np.array([1 / (part.var() + LEAST_VARIANCE) for part in parts]),
    )
    # With two threads the last bits depend on how the sums are cut.
    with _find_thread_limiter().limit(limits=1), warnings.catch_warnings():
        # A fit that has not converged after so many steps is good enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(values[:, None])
    rows = np.column_stack([mixture.means_[:, 0], mixture.covariances_, mixture.weights_])
    return np.asarray(rows[np.argsort(rows[:, 0], kind="stable")])


@lru_cache(maxsize=1)
def _find_thread_limiter() -> Any:
    """The controller of linear algebra's threads; finding the libraries takes longer than many fits."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def draw_from_mixture(mixture: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Draw `count` numbers from a mixture, float64 `[count]`; all NaN if all weights are 0.

    Args:
        mixture: `[L, 3]`, see `fit_mixture`.
        count: how many numbers.
        rng: random generator.
    """
    mean, variance, weight = mixture.double().numpy().T
    if not weight.sum() > 0:
        return torch.full((count,), torch.nan, dtype=torch.float64)
    which = rng.choice(len(weight), count, p=weight / weight.sum())
    return torch.from_numpy(mean[which] + np.sqrt(variance[which]) * rng.standard_normal(count))


def pool_draws(draws: Tensor) -> Tensor:
    """All clients' draws as one list, in ascending order, without NaN.

    Args:
        draws: `[clients, count]`, NaN for a client without a mixture.
    """
    return draws[~torch.isnan(draws)].sort().values


def quantile(pool: Tensor, level: float) -> float:
    """The `ceil(level * N)`-th of N sorted numbers, as NumPy's `inverted_cdf`; NaN if N is 0.

    Args:
        pool: `[N]`, in ascending order.
        level: above 0, at most 1.
    """
    return float(pool[ceil(level * len(pool)) - 1]) if len(pool) else float("nan")
