"""Noise of differential privacy on the label distributions and predictions that clients send.

The budget epsilon is for one release: one label distribution, or one prediction for one public example.
`Mechanism.total_epsilon` is the budget of several releases of one client together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

NoiseKind: TypeAlias = Literal["laplace", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The kind and the budget of differential-privacy noise.

    Attributes:
        kind: `laplace` is epsilon-private; `gaussian` is (epsilon, delta)-private.
        epsilon: the budget of one release, above 0.
        delta: the delta of the Gaussian mechanism, between 0 and 1; `laplace` ignores it.
    """

    kind: NoiseKind = "laplace"
    epsilon: float
    delta: float = 1e-5

    def scale(self, l1: float, l2: float) -> float:
        """Return the factor of standard noise: Laplace's b, or the standard deviation of the Gaussian.

        Laplace has `b = l1 / epsilon`. The Gaussian uses zero-concentrated privacy, which holds for every
        epsilon: `l2 / sqrt(2 rho)` with `sqrt(rho) = sqrt(epsilon + log(1/delta)) - sqrt(log(1/delta))`
        (Bun and Steinke, TCC 2016, Propositions 1.3 and 1.6).

        Args:
            l1: sensitivity in the L1 norm: how far one example can change the release.
            l2: sensitivity in the Euclidean norm.
        """
        if self.kind == "laplace":
            return l1 / self.epsilon
        return l2 / sqrt(2 * self.rho)

    @property
    def rho(self) -> float:
        """Budget of one Gaussian release in zero-concentrated privacy."""
        far = log(1 / self.delta)
        return (sqrt(self.epsilon + far) - sqrt(far)) ** 2

    def total_epsilon(self, releases: int) -> float:
        """Return the epsilon of this many releases together; the Gaussian's delta stays the same.

        The epsilons of Laplace releases add up (basic composition). The budgets rho of Gaussian releases add
        up (Bun and Steinke, Lemma 1.7), and `k rho` is (`k rho + 2 sqrt(k rho log(1/delta))`, delta)-private
        (Proposition 1.3). For one release the result is `epsilon`.
        """
        if self.kind == "laplace":
            return releases * self.epsilon
        return _convert_rho(releases * self.rho, self.delta)

    def prediction_scale(self, classes: int, several_labels: bool) -> float:
        """Return the scale of the noise on one soft prediction.

        Two predictions differ by at most 2 in the L1 norm and sqrt(2) in the Euclidean norm. If an example
        has several labels, they differ by at most 1 in each label.

        Args:
            classes: number of classes or labels.
            several_labels: whether an example has several yes-or-no labels.
        """
        return self.scale(classes, sqrt(classes)) if several_labels else self.scale(2.0, sqrt(2.0))

    def draw_standard_noise(self, stream: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw noise of scale 1, float32 of this shape."""
        draw = stream.laplace if self.kind == "laplace" else stream.standard_normal
        return draw(size=shape).astype(np.float32)

    def record(self) -> dict[str, Any]:
        """Return the mechanism as a mapping for the run's record."""
        said = {"noise": self.kind, "epsilon": self.epsilon}
        return said if self.kind == "laplace" else {**said, "delta": self.delta}


def make_privacy_record(
    labels: Mechanism | None, predictions: Mechanism | None, released: int
) -> dict[str, Any]:
    """Return the privacy budgets for a run's record; {} without noise.

    Args:
        labels: the noise on a client's label distribution; None for none.
        predictions: the noise on each prediction; None for none.
        released: how many predictions a client has sent if it took part in every round. Together they are
            `epsilon_total`-private; with Gaussian noise (`epsilon_total`, `delta_total`)-private.

    Returns:
        `labels`, `predictions`, and with noise on both also `together`: the epsilon and the delta of all
        releases of a client.
    """
    said: dict[str, Any] = {}
    if labels is not None:
        said["labels"] = labels.record()
    if predictions is not None:
        total: dict[str, Any] = {"epsilon_total": predictions.total_epsilon(released)}
        if predictions.kind == "gaussian":
            total["delta_total"] = predictions.delta
        said["predictions"] = {**predictions.record(), "released": released, **total}
    if labels is not None and predictions is not None:
        said["together"] = _compose(labels, predictions, released)
    return said


def _compose(labels: Mechanism, predictions: Mechanism, released: int) -> dict[str, float]:
    """Return epsilon and delta of one label distribution and this many predictions together.

    Two Gaussians with one delta add their rho (Bun and Steinke, Lemma 1.7), and keep it. All other pairs add
    their epsilons and their deltas (basic composition).
    """
    deltas = [each.delta for each in (labels, predictions) if each.kind == "gaussian"]
    if len(deltas) == 2 and deltas[0] == deltas[1]:
        rho = labels.rho + released * predictions.rho
        return {"epsilon": _convert_rho(rho, deltas[0]), "delta": deltas[0]}
    return {"epsilon": labels.epsilon + predictions.total_epsilon(released), "delta": sum(deltas)}


def _convert_rho(rho: float, delta: float) -> float:
    """Return the epsilon at this delta of a budget in zero-concentrated privacy (Proposition 1.3)."""
    return rho + 2 * sqrt(rho * log(1 / delta))


def add_label_noise(
    counts: NDArray[np.float64], mechanism: Mechanism, stream: np.random.Generator
) -> NDArray[np.float64]:
    """Return a client's label distribution with noise, cut at 0 and scaled to sum 1.

    If another example replaces one of the client's n, two shares change by 1/n each. The L1 sensitivity is
    therefore 2/n, the Euclidean one sqrt(2)/n. The number of examples counts as known, not as private.

    Args:
        counts: float64 `[classes]`, the client's examples of each class; each example counts once.
        mechanism: the noise.
        stream: the client's random stream.

    Returns:
        float64 `[classes]`; the uniform distribution if noise leaves no share above 0.
    """
    total = max(counts.sum(), 1.0)
    scale = mechanism.scale(2 / total, sqrt(2) / total)
    noisy = counts / total + scale * mechanism.draw_standard_noise(stream, counts.shape)
    cut = np.maximum(noisy, 0.0)
    return cut / cut.sum() if cut.sum() > 0 else np.full_like(counts, 1 / len(counts))
