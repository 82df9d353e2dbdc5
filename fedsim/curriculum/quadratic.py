"""Quadratics with biased gradients, and local SGD on them: the model of `fedsim.curriculum.theory`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng

Array = NDArray[np.float64]
BiasOrder = Literal["curriculum", "anti", "random", "vanilla"]


@dataclass(frozen=True)
class Quadratic:
    """f(θ) = ½ (θ - θ*)ᵀ H (θ - θ*), with the clients' biases and noise.

    Coordinates are the eigenvectors of H, with θ* as the origin, without loss of generality.

    Attributes:
        curvature: eigenvalues of H, `[d]`, all above 0.
        start: θ - θ* at the beginning, `[d]`.
        directions: of the biases, `[Q, d]`, summing to 0 over the clients, none longer than 1.
        couplings: the linear change of each client's bias with θ, `[Q, d, d]`, summing to 0; all 0 for biases
            that do not depend on θ, as in the proof of Lemma 2. Otherwise the clients' curvatures differ.
        noise_slope: M.
        noise_floor: σ, a standard deviation.
    """

    curvature: Array
    start: Array
    directions: Array
    couplings: Array
    noise_slope: float
    noise_floor: float

    @property
    def mu(self) -> float:
        """The convexity parameter μ."""
        return float(self.curvature.min())

    @property
    def smoothness(self) -> float:
        """The Lipschitz constant L of ∇f."""
        return float(self.curvature.max())

    @property
    def clients(self) -> int:
        """The number of clients, Q."""
        return len(self.directions)

    @property
    def largest_step(self) -> float:
        """The largest α that Theorem 1 and Lemma 4 allow."""
        slope = 3 + 2 * self.noise_slope
        return 1 / (4 * self.smoothness * max(slope, 1 + 2 * slope / self.clients))

    def biases(self, theta: Array, bound: float) -> Array:
        """b_k(θ_k) for parameters `[..., Q, d]`, with ‖b_k‖² <= bound and Σ_k b_k(θ) = 0 at any one θ."""
        raw = self.directions + np.einsum("qde,...qe->...qd", self.couplings, theta)
        longest = np.linalg.norm(raw, axis=-1).max(axis=-1, keepdims=True)[..., None]
        scaled: Array = np.sqrt(bound) * raw / np.maximum(longest, 1.0)
        return scaled


@dataclass(frozen=True)
class SimulatedRun:
    """The results of a simulation, averaged over repetitions.

    Attributes:
        distances: E‖θ - θ*‖² at the start and after each round, `[T + 1]`.
        gradients: E‖∇f(θ)‖² at the beginning of each round, `[T]`.
        largest: the largest E‖g_k‖ (root of the mean square) of any client and step: G of Theorem 2.
        gap: f(θ) - f* at the start.
    """

    distances: Array
    gradients: Array
    largest: float
    gap: float


def random_quadratic(
    seed: int,
    *,
    dimension: int = 10,
    clients: int = 10,
    curvatures: tuple[float, float] = (1.0, 4.0),
    noise_slope: float = 1.0,
    noise_floor: float = 0.1,
    distance: float = 1.0,
    coupling: float = 0.0,
) -> Quadratic:
    """Draw a random quadratic.

    Args:
        seed: of the problem.
        dimension: d.
        clients: Q, at least 2.
        curvatures: μ and L; the eigenvalues between them are drawn evenly.
        noise_slope: M.
        noise_floor: σ.
        distance: ‖θ - θ*‖ at the start.
        coupling: spectral norm of the largest coupling.
    """
    draw = rng.stream(seed, "theory problem")
    least, greatest = curvatures
    middle = draw.uniform(least, greatest, max(dimension - 2, 0))
    start = draw.normal(size=dimension)
    couplings = draw.normal(size=(clients, dimension, dimension))
    couplings -= couplings.mean(0)
    return Quadratic(
        curvature=np.array([least, *middle, greatest][:dimension]),
        start=distance * start / np.linalg.norm(start),
        directions=_balance_vectors(draw.normal(size=(clients, dimension))),
        couplings=coupling * couplings / np.linalg.norm(couplings, 2, axis=(1, 2)).max(),
        noise_slope=noise_slope,
        noise_floor=noise_floor,
    )


def _balance_vectors(vectors: Array) -> Array:
    """The vectors shifted to the sum 0 and scaled to a largest length of 1."""
    centred = vectors - vectors.mean(0)
    scaled: Array = centred / np.linalg.norm(centred, axis=1).max()
    return scaled


def step_sizes(rounds: int, steps: int, first: float, *, by_round: float = 0, by_step: float = 0) -> Array:
    """α = first (t + 1)^-by_round (j + 1)^-by_step, `[rounds, steps]`; constant if both powers are 0.

    The paper's example of steps that limit a bias growing like j^(1/4) has the powers 1 and 1/4.
    """
    t, j = np.arange(1, rounds + 1), np.arange(1, steps + 1)
    sizes: Array = first * np.outer(t ** -float(by_round), j ** -float(by_step))
    return sizes


def bias_bounds(
    order: BiasOrder, rounds: int, steps: int, least: float, greatest: float, seed: int = 0
) -> Array:
    """B over the run, `[rounds, steps]`: the same values in every order; vanilla has their mean.

    Args:
        order: curriculum (growing), anti (falling), random, or vanilla.
        rounds: T.
        steps: J.
        least: the smallest B.
        greatest: the largest B.
        seed: of the random order.
    """
    values = np.linspace(least, greatest, rounds * steps)
    ordered = {
        "curriculum": values,
        "anti": values[::-1],
        "random": rng.stream(seed, "theory order").permutation(values),
        "vanilla": np.full_like(values, values.mean()),
    }
    return ordered[order].reshape(rounds, steps)


def simulate_biased(
    problem: Quadratic, alpha: Array, bias: Array, *, repeats: int = 100, seed: int = 0
) -> SimulatedRun:
    """Simulate local SGD (Algorithm 3 of the supplement) with biased gradients.

    Args:
        problem: f, the biases and the noise, which has the largest variance allowed.
        alpha: step sizes `[T, J]`.
        bias: B, `[T, J]`; each bias has the largest length allowed.
        repeats: runs over which the expectations are taken.
        seed: of the noise: every order gets the same draws, for a fair comparison.
    """
    draw, (rounds, steps) = rng.stream(seed, "theory noise"), alpha.shape
    dimension = len(problem.curvature)
    theta = np.tile(problem.start, (repeats, 1))
    distances, gradients, largest = [float((problem.start**2).sum())], list[float](), 0.0
    for t in range(rounds):
        gradients.append(_mean_square(problem.curvature * theta))
        local = np.repeat(theta[:, None, :], problem.clients, axis=1)
        for j in range(steps):
            biased = problem.curvature * local + problem.biases(local, bias[t, j])
            variance = problem.noise_slope * (biased**2).sum(-1, keepdims=True) + problem.noise_floor**2
            step = biased + np.sqrt(variance / dimension) * draw.normal(size=local.shape)
            largest = max(largest, float((step**2).sum(-1).mean(0).max()))
            local = local - alpha[t, j] * step
        theta = local.mean(1)
        distances.append(_mean_square(theta))
    gap = 0.5 * float((problem.curvature * problem.start**2).sum())
    return SimulatedRun(np.array(distances), np.array(gradients), float(np.sqrt(largest)), gap)


def _mean_square(vectors: Array) -> float:
    return float((vectors**2).sum(-1).mean())
