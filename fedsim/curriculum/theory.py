"""The biased local-SGD model of "When Do Curricula Work in Federated Learning?", on quadratics.

Saeed Vahidian et al., ICCV 2023, section 5 and the supplement's section 2. Clients with different data are
modelled as clients that all minimise one f, each with its own bias in the gradients (Assumption 1):

    g_k = ∇f(θ_k) + b_k + n_k,    ‖b_k‖² <= B,    Σ_k b_k = 0,    E n_k = 0,    E‖n_k‖² <= M‖∇f + b_k‖² + σ²

A curriculum makes B grow from step to step, because easy examples differ less between clients; the anti
curriculum makes it fall. Here f is a random quadratic with known constants, and the paper's bounds can be
compared with the simulation.

Symbols, as in the paper: θ the parameters, θ* the optimum, μ and L the least and the greatest curvature, Q
the clients of a round, T rounds of J local steps, α the step sizes, B the bounds on the squared biases, M and
σ² the noise. α and B are arrays `[T, J]`.

*Deviations*: rounds and steps are counted from 0 to T - 1 and J - 1 (printed: 1 or 0 to T and J). Theorem 1
has σ³ where its lemmas have σ²; σ² is used. It has B² where Assumption 1 bounds the squared norm by B; it is
evaluated as printed, and `lemma_bound` evaluates the bound of the lemmas themselves. Theorem 2's left side is
weighted with α, as in its proof.
"""

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


def theorem1(problem: Quadratic, alpha: Array, bias: Array) -> Array:
    """Theorem 1's bound on E‖θ - θ*‖² at the start and after each round, `[T + 1]`.

        Π(1 - αμ/2) ‖θ₀ - θ*‖²  +  Σ 2α²L((3 + 2M)B + 3σ²)/Q  +  Σ 2αLB²/(μQ)

    Later steps discount neither sum. With constant α the bound is the same for every order of the same
    biases; with falling α it is smaller if the large biases come later.

    Raises:
        ValueError: if a step is larger than the theorem allows.
    """
    _check_step_sizes(problem, alpha)
    mu, smooth, clients = problem.mu, problem.smoothness, problem.clients
    kept = np.cumprod(np.prod(1 - alpha * mu / 2, axis=1))
    noise = (3 + 2 * problem.noise_slope) * bias + 3 * problem.noise_floor**2
    added = (2 * alpha**2 * smooth * noise + 2 * alpha * smooth * bias**2 / mu) / clients
    square = float((problem.start**2).sum())
    return np.array([square, *(kept * square + np.cumsum(added.sum(1)))])


def lemma_bound(problem: Quadratic, alpha: Array, bias: Array) -> Array:
    """The bound of Lemmas 4 and 5 step by step, with B the bound on the squared bias: `[T + 1]`.

        D <- (1 - αμ) D + 2αLV + α²((3 + 2M)B + 3σ²)/Q
        V <- (1 - αμ/2) V + α(α(3 + 2M) + 2/μ)B + 3α²σ²,    V = 0 at the beginning of each round

    D bounds E‖θ - θ*‖² and V the clients' mean squared distance from their average. Later steps discount
    earlier terms; the theorem leaves this discount out.

    Raises:
        ValueError: if a step is larger than the theorem allows, or if the steps of a round are too large or
            too many for the terms in f - f* to cancel as in its proof.
    """
    _check_step_sizes(problem, alpha)
    _check_cancelling(problem, alpha)
    mu = problem.mu
    smooth = problem.smoothness
    slope = 3 + 2 * problem.noise_slope
    floor = problem.noise_floor
    bound = [float((problem.start**2).sum())]
    for steps, biases in zip(alpha, bias, strict=True):
        far, spread = bound[-1], 0.0
        for a, b in zip(steps, biases, strict=True):
            far = (
                (1 - a * mu) * far
                + 2 * a * smooth * spread
                + a**2 * (slope * b + 3 * floor**2) / problem.clients
            )
            spread = (1 - a * mu / 2) * spread + a * (a * slope + 2 / mu) * b + 3 * a**2 * floor**2
        bound.append(far)
    return np.array(bound)


def theorem2(problem: Quadratic, alpha: Array, simulated: SimulatedRun) -> tuple[Array, Array]:
    """Both sides of Theorem 2 after each round, `[T]` each, with G from the simulation.

        Σ α‖∇f(θ^{t,0})‖²   <=   Q(f(θ₀) - f*)  +  2 Σ_t Σ_j α_j (α_j + Σ_{l>=j} α_l) L G²

    Returns:
        The left side and the right side.
    """
    left = np.cumsum(alpha.sum(1) * simulated.gradients)
    later = np.cumsum(alpha[:, ::-1], axis=1)[:, ::-1]
    crossed = (alpha * (alpha + later)).sum(1)
    cost = 2 * problem.smoothness * simulated.largest**2 * np.cumsum(crossed)
    return left, problem.clients * simulated.gap + cost


def _check_step_sizes(problem: Quadratic, alpha: Array) -> None:
    if (largest := float(alpha.max())) > problem.largest_step * (1 + 1e-12):
        raise ValueError(
            f"the largest step size is {largest!r}, and the theorem holds up to {problem.largest_step:.4g}; "
            "take smaller steps, or a problem with smaller L or M"
        )


def _check_cancelling(problem: Quadratic, alpha: Array) -> None:
    """Check that Lemma 4's terms in f - f* outweigh Lemma 5's.

    The condition: 8(3 + 2M)L² α_i Σ_{j>i} α_j w_j / w_i <= 1 within a round, with w_j = 1 / Π_{l<=j}(1 - α_l
        μ).
    """
    kept = np.cumprod(1 - alpha * problem.mu, axis=1)
    weighed = alpha / kept
    after = np.cumsum(weighed[:, ::-1], axis=1)[:, ::-1] - weighed
    slope = 8 * (3 + 2 * problem.noise_slope) * problem.smoothness**2
    crossed = slope * float((alpha * kept * after).max())
    if crossed > 1:
        raise ValueError(
            f"the steps of a round reach {crossed:.3g} times the limit of Lemmas 4 and 5; take smaller or "
            "fewer steps"
        )


def _mean_square(vectors: Array) -> float:
    return float((vectors**2).sum(-1).mean())
