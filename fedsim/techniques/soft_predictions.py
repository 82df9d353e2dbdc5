"""The soft predictions of ACE-pFL: their temperature by round, the entries that travel, and their noise.

ACE-pFL (He et al., IEEE Transactions on Networking 2025), Section III-C. With several yes-or-no labels
per example, a prediction is the probability of each label, and a label that is not sent counts as 1/2
(undecided).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, expm1, floor
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsim.base.tree import Tree
from fedsim.techniques.soft_targets import LEAST_PROBABILITY

Curve: TypeAlias = Literal["f1", "f2", "f3", "f4", "f5", "fixed"]
Stage: TypeAlias = Literal["r0", "t0"]
Unsent: TypeAlias = Literal["even", "zero"]

RUN_LENGTH_CURVES: frozenset[Curve] = frozenset({"f2", "f3", "f5"})
"""The curves that depend on the number of rounds of the run."""

UNDECIDED = 0.5
"""The probability of a yes-or-no label that was not sent."""


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The temperature T_r of round r, from 1 (Eq. 2 and Fig. 5).

    With `D = r - r0 floor(r / r0)`, the curve `f1` is the paper's

        T_r = t0 + k1 / (1 + exp(-k2)) floor(r / r0) + 2 k1 / (1 + exp(-k2 D))

    The other curves are, with `u = r / R` and A the rise of f1 above t0 after R rounds:

        f2    t0 + A (2 / (1 + exp(-k2 u)) - 1) / (2 / (1 + exp(-k2)) - 1)      rises fast, then slowly
        f3    t0 + A (exp(k2 u) - 1) / (exp(k2) - 1)                            rises slowly, then fast
        f4    f1 whose pieces are t0 + ... + k1 + k1 (exp(k2 D / r0) - 1) / (exp(k2) - 1)
        f5    t0 + A u
        fixed t0

    The curves f2, f3 and f5 end at f1's last value, and so does f4 if r0 divides R.

    The paper prints f1, and of f4 two parts that reach 10^214 with its own constants; f2, f3 and f5 are
    drawn.

    Attributes:
        curve: name of the curve.
        t0, k1, k2, r0: the paper's T_0, k_1, k_2 and r_0.
        stage: length of the stages of f1, in rounds: `r0` or `t0`. The paper's Eq. 2 prints T_0, its text and
            its ablation have r_0.
        rounds: R.
    """

    curve: Curve = "f1"
    t0: float = 30.0
    k1: float = 5.0
    k2: float = 5.0
    r0: int = 100
    stage: Stage = "r0"
    rounds: int

    def __call__(self, round: int) -> float:
        """T_r of round r, counted from 1."""
        return _CURVES[self.curve](self, round)

    def earlier_stages_rise(self, round: int) -> float:
        """The rise of all stages before this round's."""
        length = self.r0 if self.stage == "r0" else self.t0
        return self.k1 / (1 + exp(-self.k2)) * floor(round / length)

    def rise(self) -> float:
        """A: the rise of the curve f1 above t0 at the end of the run."""
        return _sigmoid_pieces(self, self.rounds) - self.t0


def _sigmoid_pieces(curve: Temperature, round: int) -> float:
    return (
        curve.t0 + curve.earlier_stages_rise(round) + 2 * curve.k1 / (1 + exp(-curve.k2 * (round % curve.r0)))
    )


def _exponential_pieces(curve: Temperature, round: int) -> float:
    within = expm1(curve.k2 * (round % curve.r0) / curve.r0) / expm1(curve.k2)
    return curve.t0 + curve.earlier_stages_rise(round) + curve.k1 * (1 + within)


def _slowing_curve(curve: Temperature, round: int) -> float:
    reached = 2 / (1 + exp(-curve.k2 * round / curve.rounds)) - 1
    return curve.t0 + curve.rise() * reached / (2 / (1 + exp(-curve.k2)) - 1)


def _quickening_curve(curve: Temperature, round: int) -> float:
    return curve.t0 + curve.rise() * expm1(curve.k2 * round / curve.rounds) / expm1(curve.k2)


_CURVES: Mapping[Curve, Callable[[Temperature, int], float]] = {
    "f1": _sigmoid_pieces,
    "f2": _slowing_curve,
    "f3": _quickening_curve,
    "f4": _exponential_pieces,
    "f5": lambda curve, round: curve.t0 + curve.rise() * round / curve.rounds,
    "fixed": lambda curve, round: curve.t0,
}


def top_k(soft: Tensor, k: int, unsent: Unsent = "zero", several_labels: bool = False) -> Tensor:
    """The k largest probabilities of each row, with values for the other entries; each row has the sum 1.

    Args:
        soft: soft predictions `[n, classes]`, see `soft_targets.soften_logits`.
        k: at least 1; from the number of classes on, every entry is kept.
        unsent: entries that are not sent are 0 and the sent ones are rescaled to the sum 1 (`zero`); or the
            entries that are not sent share the rest of the sum evenly (`even`).
        several_labels: whether an example has several yes-or-no labels: then the k labels furthest from
            `UNDECIDED` are kept as they are, and the others become `UNDECIDED`.

    Example:
        >>> top_k(torch.tensor([[0.6, 0.3, 0.1]]), k=1, unsent="even")
        tensor([[0.6000, 0.2000, 0.2000]])
    """
    classes = soft.shape[-1]
    size = (soft - UNDECIDED).abs() if several_labels else soft
    places = size.topk(min(k, classes), -1).indices
    kept = torch.full_like(soft, UNDECIDED if several_labels else 0.0)
    kept = kept.scatter(-1, places, soft.gather(-1, places))
    if several_labels:
        return kept
    total = kept.sum(-1, keepdim=True)
    if unsent == "zero" or k >= classes:
        return kept / total
    others = torch.ones_like(soft).scatter(-1, places, 0.0)
    return kept + others * (1 - total).clamp(min=0) / (classes - k)


def add_prediction_noise(soft: Tensor, noise: Tensor, several_labels: bool = False) -> Tensor:
    """Soft predictions plus noise, again as probabilities: values below 0 or above 1 are cut off.

    Args:
        soft: soft predictions, see `soft_targets.soften_logits`.
        noise: of the same shape.
        several_labels: whether an example has several labels.
    """
    if several_labels:
        return (soft + noise).clamp(0, 1)
    positive = (soft + noise).clamp(min=LEAST_PROBABILITY)  # above 0, so that a row has a sum
    return positive / positive.sum(-1, keepdim=True)


def average_in_clusters(said: Tree, least: float) -> Tensor | None:
    """The mean prediction of each cluster; that of all clients for a cluster of which no client came.

    Args:
        said: the clients' weighted means: `probabilities` `[clusters, n, classes]`, where every client has 0
            in the rows of other clusters; `present` and `silent` `[clusters]`, the weights of the clients
            that came, and of those without finite predictions.
        least: weights below this are 0 but for rounding.

    Returns:
        `[clusters, n, classes]`; None if no client has finite predictions.
    """
    heard, total = said["present"] - said["silent"], said["probabilities"].sum(0)
    if float(heard.sum()) < least:
        return None
    everybody = total / heard.sum()
    pairs = zip(said["probabilities"], heard, strict=True)
    return torch.stack([part / mass if float(mass) > least else everybody for part, mass in pairs])
