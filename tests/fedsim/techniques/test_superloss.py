"""SuperLoss against SciPy's Lambert function and against a numerical minimiser."""

from math import e
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.special import lambertw

from fedsim.techniques.superloss import SuperLoss, lambert_w


def test_lambert_w_from_the_branch_point_on() -> None:
    """20,001 points, many of them next to -1/e, where SciPy's float64 answer is NaN at the very point."""
    near = -1 / e + np.logspace(-16, -1, 10_000)
    y = np.concatenate([[-1 / e], near, np.logspace(-10, 6, 10_000)])
    found = lambert_w(torch.from_numpy(y)).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found * np.exp(found), y, rtol=1e-12, atol=1e-14)
    far = y > -1 / e + 1e-6
    np.testing.assert_allclose(found[far], lambertw(y[far]).real, rtol=1e-9, atol=1e-12)
    assert found[0] == pytest.approx(-1, abs=1e-7)


@pytest.mark.parametrize("tau", [np.log(5), np.log(10), 10.0])
@pytest.mark.parametrize("strength", [0.2, 0.5, 1.0])
def test_the_confidence_is_bounded_falls_and_is_one_at_tau(tau: float, strength: float) -> None:
    rule = SuperLoss(tau, strength)
    edge = tau - 2 * strength / e
    grid = np.concatenate([np.linspace(0, 40, 20_001), edge + np.linspace(-1e-6, 1e-6, 2001), [1e4, 1e30]])
    for kind in (torch.float64, torch.float32):
        losses = torch.from_numpy(np.sort(grid)).to(kind)
        sigma = rule.confidence(losses)
        assert torch.isfinite(sigma).all()
        assert (sigma >= 0).all()
        assert (sigma <= e * (1 + 1e-6)).all()
        assert (sigma.diff() <= 1e-7).all()
        for values in (rule(losses), rule.difficulty(losses)):
            assert torch.isfinite(values).all()
    at_tau = rule.confidence(torch.tensor([tau], dtype=torch.float64))
    assert float(at_tau) == pytest.approx(1, abs=1e-12)
    assert float(rule.confidence(torch.tensor([edge - 1e-3]))) == pytest.approx(e, rel=1e-6)


def charged(s: Any, excess: float, strength: float) -> Any:
    """Eq. 7 with sigma = e^s."""
    return excess * np.exp(s) + strength * s * s


def test_the_confidence_is_the_minimiser() -> None:
    """Of Eq. 7 over sigma = e^s, s <= 1, by SciPy's bounded search; the flat branch point is left out."""
    options = {"bounds": (-12, 1), "method": "bounded", "options": {"xatol": 1e-12}}
    for strength, tau in ((0.5, np.log(10)), (1.0, 10.0), (0.2, 1.0)):
        excess = np.concatenate([np.linspace(-6, -0.75, 30), np.linspace(-0.72, 12, 90)])
        losses = tau + strength * excess
        found = SuperLoss(tau, strength).confidence(torch.from_numpy(losses)).numpy()
        for loss, sigma in zip(losses, found, strict=True):
            best = minimize_scalar(charged, args=(loss - tau, strength), **options)
            assert charged(np.log(sigma), loss - tau, strength) <= best.fun + 1e-9
            assert sigma == pytest.approx(np.exp(best.x), abs=1e-6)


def test_the_confidence_is_where_eq_7_is_level_up_to_the_branch_point() -> None:
    """Its slope by s = log sigma is (l - tau) e^s + 2 lambda s, of which SciPy finds the zero.

    Towards (l - tau) / lambda = -2 / e Eq. 7 is so flat that a search for the least value ends anywhere.
    """
    for strength, tau in ((0.5, np.log(10)), (1.0, 10.0), (0.2, 1.0)):
        near = -2 / e + np.concatenate([-np.logspace(-14, -1, 40), [0.0], np.logspace(-14, -1, 80)])
        losses = tau + strength * np.concatenate(
            [near, np.linspace(-0.76, -0.70, 121), np.linspace(-0.7, 12, 60)]
        )
        found = SuperLoss(tau, strength).confidence(torch.from_numpy(losses)).numpy()
        for loss, sigma in zip(losses, found, strict=True):

            def slope(s: float, excess: float = loss - tau, strength: float = strength) -> float:
                return excess + 2 * strength * s * float(np.exp(-s))

            # Where it falls up to s = 1, the smallest is there.
            best = 1.0 if slope(1) <= 0 else brentq(slope, -12, 1, xtol=1e-15)
            assert sigma == pytest.approx(np.exp(best), abs=1e-6)


def test_the_difficulty_is_the_excess_times_the_confidence() -> None:
    """Eq. 6 with SciPy's closed form."""
    for strength, tau in ((0.5, np.log(10)), (1.0, 10.0), (0.2, 1.0)):
        losses = np.concatenate([np.linspace(0, 2 * tau, 200), [50.0, 1e4]])
        closed = np.maximum(-2 / e + 1e-12, (losses - tau) / strength) / 2
        expected = (losses - tau) * np.exp(-lambertw(closed).real)
        found = SuperLoss(tau, strength).difficulty(torch.from_numpy(losses)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert (np.diff(found) > 0).all()  # a harder example stays the harder one


def test_the_gradient_is_the_confidence_and_it_can_be_mapped() -> None:
    rule = SuperLoss(np.log(10), 0.5)
    losses = torch.linspace(0, 8, 24, dtype=torch.float64).requires_grad_()
    [slope] = torch.autograd.grad(rule(losses).sum(), losses)
    assert torch.equal(slope, rule.confidence(losses))
    each = torch.func.vmap(torch.func.grad(lambda loss: rule(loss).sum()))(losses.detach().view(4, 6))
    assert torch.equal(each.flatten(), slope)
