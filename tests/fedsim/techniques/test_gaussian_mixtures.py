"""What a client tells of its examples' difficulties, and what the server makes of it."""

import numpy as np
import pytest
import torch

from fedsim.base import rng
from fedsim.techniques.gaussian_mixtures import (
    LEAST_VARIANCE,
    draw_from_mixture,
    fit_mixture,
    pool_draws,
    quantile,
)


def test_a_known_mixture_is_recovered() -> None:
    chance = np.random.default_rng(5)
    known = np.array([[-4.0, 0.25, 0.2], [-1.0, 0.09, 0.5], [2.0, 0.64, 0.3]])
    which = chance.choice(3, 4000, p=known[:, 2])
    values = known[which, 0] + np.sqrt(known[which, 1]) * chance.standard_normal(4000)
    found = fit_mixture(values, 3).numpy()
    np.testing.assert_allclose(found, known, atol=0.06)
    again = draw_from_mixture(torch.from_numpy(found), 20_000, rng.stream(1, "draws", 0)).numpy()
    for level in (0.05, 0.3, 0.6, 0.9):
        assert np.quantile(again, level) == pytest.approx(np.quantile(values, level), abs=0.1)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9, 10, 14, 15, 40])
def test_few_numbers_have_few_components_in_the_same_shape(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    found = fit_mixture(values, 3)
    assert found.shape == (3, 3)
    assert found.dtype is torch.float32
    several = int((found[:, 2] > 0).sum())
    assert min(1, count // 5) <= several <= min(3, count // 5)
    assert float(found[:, 2].sum()) == pytest.approx(float(count >= 5), abs=1e-6)
    assert (found[:several, 1] >= LEAST_VARIANCE * 0.999).all()
    assert (found[:several, 0].diff() >= 0).all()
    assert torch.equal(found, fit_mixture(values[::-1].copy(), 3))


@pytest.mark.parametrize("count", [*range(1, 12), 40])
@pytest.mark.parametrize("outlier", [False, True])
@pytest.mark.parametrize("components", [1, 3, 8])
def test_no_component_is_of_fewer_than_five_numbers(count: int, outlier: bool, components: int) -> None:
    """Else its mean would be an example's own, or two examples' could be read off its mean and variance."""
    values = np.random.default_rng(count).normal(size=count)
    if outlier:
        values[-1] = 25
    found = fit_mixture(values, components).numpy()
    there = found[found[:, 2] > 0]
    assert len(there) == 0 if count < 5 else len(there) >= 1
    assert (there[:, 2] * count > 5 - 1e-3).all()
    assert not np.isin(found[:, 0], values.astype(np.float32)).any()


def test_equal_numbers_do_no_harm() -> None:
    for values in (np.full(50, -2.0), np.repeat([-2.0, 1.0], 25), np.repeat([0.0, 1.0, 2.0, 3.0], 6)):
        found = fit_mixture(values, 3)
        assert torch.isfinite(found).all()
        assert (found[found[:, 2] > 0, 1] >= LEAST_VARIANCE * 0.999).all()
        assert torch.isfinite(draw_from_mixture(found, 100, rng.stream(1, "draws", 0))).all()


def test_what_is_not_finite_is_left_out() -> None:
    values = np.random.default_rng(0).normal(size=30)
    gaps = np.concatenate([values, [np.nan, np.inf, -np.inf]])
    assert torch.equal(fit_mixture(gaps, 3), fit_mixture(values, 3))
    assert not fit_mixture(np.full(20, np.nan), 3).any()


def test_who_holds_nothing_is_not_drawn() -> None:
    nobody = draw_from_mixture(fit_mixture(np.zeros(0), 3), 4, rng.stream(1, "draws", 0))
    assert torch.isnan(nobody).all()
    assert len(pool_draws(nobody)) == 0
    assert np.isnan(quantile(pool_draws(nobody), 0.3))


def test_the_pooled_quantiles_are_numpys() -> None:
    mixtures = [fit_mixture(np.random.default_rng(k).normal(k, 1 + k, 60), 3) for k in range(6)]
    draws = torch.stack(
        [draw_from_mixture(m, 37, rng.stream(3, "draws", 0, k)) for k, m in enumerate(mixtures)]
    )
    draws[2] = torch.nan
    pool, by_hand = pool_draws(draws), draws[[0, 1, 3, 4, 5]].numpy().ravel()
    np.testing.assert_array_equal(pool.numpy(), np.sort(by_hand))
    for level in (0.01, 0.2, 0.3, 1 / 3, 0.6, 0.9, 0.999, 1.0):
        assert quantile(pool, level) == np.quantile(by_hand, level, method="inverted_cdf")
