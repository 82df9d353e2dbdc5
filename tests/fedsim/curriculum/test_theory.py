"""The biased local-SGD model: its parts, its bounds, and what the order of the biases changes."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.curriculum.theory import (
    Array,
    BiasOrder,
    Quadratic,
    bias_bounds,
    lemma_bound,
    random_quadratic,
    simulate_biased,
    step_sizes,
    theorem1,
    theorem2,
)

ROUNDS, STEPS = 25, 5
ORDERS: tuple[BiasOrder, ...] = ("curriculum", "anti", "vanilla")


def falling(problem: Quadratic) -> Array:
    return step_sizes(ROUNDS, STEPS, problem.largest_step / 2, by_round=0.75, by_step=0.25)


def near(seed: int) -> Quadratic:
    """A problem that starts near its optimum, so that the biases matter more than the start."""
    return random_quadratic(seed, dimension=6, clients=4, noise_slope=2.0, noise_floor=0.01, distance=0.03)


def test_the_biases_are_bounded_and_sum_to_zero() -> None:
    problem = random_quadratic(3, clients=5, dimension=4, coupling=2.0)
    theta = np.random.default_rng(0).normal(size=4)
    biases = problem.biases(np.tile(theta, (5, 1)), 0.09)
    assert np.abs(biases.sum(0)).max() < 1e-12
    assert (biases**2).sum(1).max() == pytest.approx(0.09)
    assert (random_quadratic(3, clients=5, dimension=4).couplings == 0).all()


def test_every_order_has_the_same_biases() -> None:
    by_order = {
        order: bias_bounds(order, 4, 3, 0.1, 1.0, seed=1) for order in ("curriculum", "anti", "random")
    }
    assert {tuple(sorted(b.ravel())) for b in by_order.values()} == {tuple(np.linspace(0.1, 1.0, 12))}
    assert (np.diff(by_order["curriculum"].ravel()) > 0).all()
    assert (np.diff(by_order["anti"].ravel()) < 0).all()
    assert bias_bounds("vanilla", 4, 3, 0.1, 1.0).sum() == pytest.approx(by_order["anti"].sum())


def expected(problem: Quadratic, alpha: Array, bias: Array) -> list[float]:
    """E‖θ - θ*‖² of biases that do not depend on θ, exactly: means and variances by coordinate, no sampling.

    The mean of client k moves by -α(h m + b_k) and its variance by (1 - αh)² and α² times the noise's; the
    average of the clients keeps the variance that they began the round with, and a Q-th of what came since.
    """
    h, clients = problem.curvature, problem.clients
    mean, variance = problem.start.copy(), np.zeros_like(h)
    found = [float((mean**2).sum())]
    for steps, bounds in zip(alpha, bias, strict=True):
        means, shared, own = np.tile(mean, (clients, 1)), variance.copy(), np.zeros((clients, len(h)))
        for a, b in zip(steps, bounds, strict=True):
            directions = np.sqrt(b) * problem.directions
            square = (h**2 * (shared + own) + (h * means + directions) ** 2).sum(1, keepdims=True)
            noise = (problem.noise_slope * square + problem.noise_floor**2) / len(h)
            means = means - a * (h * means + directions)
            shared, own = (1 - a * h) ** 2 * shared, (1 - a * h) ** 2 * own + a**2 * noise
        mean, variance = means.mean(0), shared + own.mean(0) / clients
        found.append(float((mean**2 + variance).sum()))
    return found


def test_the_simulation_has_the_moments_that_follow_from_the_model() -> None:
    problem = near(1)
    alpha, bias = falling(problem), bias_bounds("curriculum", ROUNDS, STEPS, 0.01, 1.0)
    simulated = simulate_biased(problem, alpha, bias, repeats=2000, seed=5)
    assert simulated.distances == pytest.approx(expected(problem, alpha, bias), rel=0.05)
    assert simulated.gap == pytest.approx(0.5 * float(problem.curvature @ problem.start**2))


def test_without_noise_zero_sum_biases_leave_the_mean_of_a_quadratic_alone() -> None:
    problem = random_quadratic(2, noise_slope=0.0, noise_floor=0.0)
    alpha = step_sizes(ROUNDS, STEPS, problem.largest_step)
    ends = [
        simulate_biased(problem, alpha, bias_bounds(order, ROUNDS, STEPS, 0.0, bound), repeats=1).distances[
            -1
        ]
        for order, bound in zip(ORDERS, (1.0, 1.0, 0.0), strict=True)
    ]
    assert ends[0] == pytest.approx(ends[2], rel=1e-9)
    assert ends[1] == pytest.approx(ends[2], rel=1e-9)


@pytest.mark.parametrize("coupling", [0.0, 1.0])
def test_the_distances_stay_under_the_bounds_on_a_hundred_quadratics(coupling: float) -> None:
    for seed in range(100):
        draw = np.random.default_rng(seed)
        problem = random_quadratic(
            seed,
            dimension=int(draw.integers(2, 12)),
            clients=int(draw.integers(3, 12)),
            curvatures=(float(draw.uniform(0.3, 1)), float(draw.uniform(1, 8))),
            noise_slope=float(draw.uniform(0, 2)),
            noise_floor=float(draw.uniform(0, 1)),
            distance=float(draw.uniform(0.01, 3)),
            coupling=coupling,
        )
        powers = {"by_round": float(draw.uniform(0, 1)), "by_step": float(draw.uniform(0, 0.5))}
        alpha = step_sizes(15, 4, problem.largest_step / 2, **powers)
        bias = bias_bounds(ORDERS[seed % 2], 15, 4, 0.0, float(draw.uniform(0, 4)))
        simulated = simulate_biased(problem, alpha, bias, repeats=30, seed=seed)
        assert (simulated.distances[1:] <= theorem1(problem, alpha, bias)[1:]).all(), seed
        if not coupling:
            assert (simulated.distances[1:] <= lemma_bound(problem, alpha, bias)[1:]).all(), seed
        left, right = theorem2(problem, alpha, simulated)
        assert (left <= right).all(), seed


def test_with_falling_steps_the_curriculum_ends_nearer_than_the_anti_curriculum() -> None:
    # 0.961 of the anti curriculum's squared distance in the mean, 0.974 at most, by the exact moments
    ratios = []
    for seed in range(100):
        problem = near(seed)
        alpha = falling(problem)
        bounds = [bias_bounds(order, ROUNDS, STEPS, 0.01, 1.0) for order in ORDERS[:2]]
        ends = [expected(problem, alpha, bias)[-1] for bias in bounds]
        ratios.append(ends[0] / ends[1])
        for bound in (theorem1, lemma_bound):
            assert bound(problem, alpha, bounds[0])[-1] < bound(problem, alpha, bounds[1])[-1]
    assert max(ratios) < 1
    problem, ends = near(0), []
    for order in ORDERS[:2]:
        bias = bias_bounds(order, ROUNDS, STEPS, 0.01, 1.0)
        ends.append(simulate_biased(problem, falling(problem), bias, repeats=300).distances[-1])
    assert ends[0] < ends[1]


def test_with_constant_steps_it_is_the_other_way_round_and_the_theorem_cannot_tell() -> None:
    problem = near(0)
    alpha = step_sizes(ROUNDS, STEPS, problem.largest_step / 2)
    first, last = (bias_bounds(order, ROUNDS, STEPS, 0.01, 1.0) for order in ORDERS[:2])
    assert theorem1(problem, alpha, first)[-1] == pytest.approx(theorem1(problem, alpha, last)[-1])
    assert lemma_bound(problem, alpha, first)[-1] > lemma_bound(problem, alpha, last)[-1]
    assert expected(problem, alpha, first)[-1] > expected(problem, alpha, last)[-1]


def test_the_bounds_on_a_problem_small_enough_for_paper() -> None:
    # one round of two steps: α = 0.01, B = 0.5, μ = 1, L = 2, Q = 4, M = 0, σ = 0.1, ‖θ₀ - θ*‖ = 1
    problem = random_quadratic(
        0, dimension=3, clients=4, curvatures=(1.0, 2.0), noise_slope=0.0, noise_floor=0.1
    )
    alpha, bias = np.full((1, 2), 0.01), np.full((1, 2), 0.5)
    noise = 2 * 1e-4 * 2 * (3 * 0.5 + 3 * 0.01) / 4
    drift = 2 * 0.01 * 2 * 0.25 / 1 / 4
    assert theorem1(problem, alpha, bias) == pytest.approx([1.0, 0.995**2 + 2 * (noise + drift)])
    spread = 0.01 * (0.01 * 3 + 2) * 0.5 + 3 * 1e-4 * 0.01
    own = 1e-4 * (3 * 0.5 + 3 * 0.01) / 4
    second = 0.99 * (0.99 + own) + 2 * 0.01 * 2 * spread + own
    assert lemma_bound(problem, alpha, bias) == pytest.approx([1.0, second])


def test_steps_that_the_theorem_does_not_cover_are_refused() -> None:
    problem = near(0)
    bias = bias_bounds("vanilla", 2, 3, 0, 1)
    with pytest.raises(ValueError, match="largest step size"):
        theorem1(problem, step_sizes(2, 3, 1.01 * problem.largest_step), bias)
    with pytest.raises(ValueError, match="Lemmas 4 and 5"):
        lemma_bound(problem, step_sizes(2, 300, problem.largest_step), bias_bounds("vanilla", 2, 300, 0, 1))
