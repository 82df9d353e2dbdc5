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

import numpy as np

from fedsim.curriculum.quadratic import (
    Array,
    BiasOrder,
    Quadratic,
    SimulatedRun,
    bias_bounds,
    random_quadratic,
    simulate_biased,
    step_sizes,
)

__all__ = [
    "Array",
    "BiasOrder",
    "Quadratic",
    "SimulatedRun",
    "bias_bounds",
    "lemma_bound",
    "random_quadratic",
    "simulate_biased",
    "step_sizes",
    "theorem1",
    "theorem2",
]


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
