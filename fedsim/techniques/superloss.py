"""SuperLoss: a loss that weighs easy examples more than hard ones, in closed form.

Castells, Weinzaepfel, Revaud, NeurIPS 2020; here as in FedCL (arXiv:2211.07248), Eqs. 6 and 7. The loss l of
an example becomes (l - tau) sigma + lambda (log sigma)^2. The confidence sigma minimises this value among all
confidences up to e:

    sigma = exp(-W(max(-2/e, (l - tau) / lambda) / 2))

with W the principal branch of Lambert's function. An example with l = tau has the weight 1 (sigma = 1), an
easier one up to e, and a much harder one a weight near 0. Below tau - 2 lambda / e the minimum is at
sigma = e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import e, isfinite

import torch
from torch import Tensor

SERIES = (-1.0, 1.0, -1 / 3, 11 / 72, -43 / 540, 769 / 17280)
"""W(y) in powers of p = sqrt(2 (e y + 1)), near the branch point y = -1/e (Corless et al., 1996)."""

NEAR = 0.02
"""The p below which the series is used: Halley's method divides by 0 at the branch point."""

ITERATIONS = 5
"""Number of Halley's steps; each triples the number of correct digits, and the first guess has one or two."""

KEPT = 0.9
"""Factor of the old value in a running tau; SuperLoss's authors have it from batch to batch."""


def advance_tau(tau: float, losses: Sequence[float], examples: Sequence[int]) -> float:
    """The exponential mean of the loss after one more round: 0.9 tau + 0.1 the clients' mean loss.

    Args:
        tau: before the round.
        losses: mean loss of each client, in nats; a loss that is not finite does not count.
        examples: number of examples of each client, by which the losses are weighted.
    """
    sound = [(loss, n) for loss, n in zip(losses, examples, strict=True) if n and isfinite(loss)]
    if not sound:
        return tau
    return KEPT * tau + (1 - KEPT) * sum(loss * n for loss, n in sound) / sum(n for _, n in sound)


@dataclass(frozen=True)
class SuperLoss:
    """The confidence-aware loss.

    Attributes:
        tau: loss that separates easy from hard examples, in nats; a number or a scalar tensor.
        strength: lambda, above 0: cost of a confidence other than 1. With a large one all examples have
            nearly the same weight.
    """

    tau: float | Tensor
    strength: float

    def confidence(self, losses: Tensor) -> Tensor:
        """Sigma of each example, above 0 and at most e; without a gradient.

        Args:
            losses: any shape.
        """
        excess = (losses.detach().double() - self.tau) / self.strength
        return torch.exp(-lambert_w(excess.clamp(min=-2 / e) / 2)).to(losses.dtype)

    def is_most_confident(self, losses: Tensor) -> Tensor:
        """Whether each example is so easy that its confidence is the largest, e: l <= tau - 2 lambda / e.

        Args:
            losses: any shape.
        """
        return (losses.detach().double() - self.tau) / self.strength <= -2 / e

    def difficulty(self, losses: Tensor) -> Tensor:
        """(l - tau) sigma of each example (Eq. 6): small for an easy one.

        Args:
            losses: any shape.
        """
        return (losses - self.tau) * self.confidence(losses)

    def __call__(self, losses: Tensor) -> Tensor:
        """(l - tau) sigma + lambda (log sigma)^2 of each example (Eq. 7); its gradient is sigma times l's.

        Args:
            losses: any shape.
        """
        sigma = self.confidence(losses)
        return (losses - self.tau) * sigma + self.strength * sigma.log() ** 2


def lambert_w(y: Tensor) -> Tensor:
    """The principal branch of Lambert's function, W(y) e^W(y) = y, by Halley's method.

    Only `torch.where` depends on values, and `torch.func.vmap` can map over the function.

    Args:
        y: float64, at least -1/e; values below that from rounding count as -1/e.
    """
    p = torch.sqrt((2 * (e * y + 1)).clamp(min=0))
    series = torch.zeros_like(p)
    for coefficient in reversed(SERIES):
        series = series * p + coefficient
    # Away from the branch point W(y) is above -1 by at least NEAR / 2: no divisor below is 0.
    far = y.clamp(min=(NEAR**2 / 2 - 1) / e)
    w = torch.where(far < 0, series.clamp(min=-1 + NEAR / 2, max=0), torch.log1p(far.clamp(min=0)))
    for _ in range(ITERATIONS):
        grown = torch.exp(w)
        off = w * grown - far
        w = w - off / (grown * (w + 1) - (w + 2) * off / (2 * w + 2))
    return torch.where(p < NEAR, series, w)
