"""Noise of differential privacy, for what clients tell about themselves.

The budget epsilon is that of one release: a label distribution, or the prediction for one public example.
What several releases of one client give away together is `Mechanism.composed`.
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
    """How noise is drawn.

    Attributes:
        kind: `laplace` is epsilon-private; `gaussian` is (epsilon, delta)-private.
        epsilon: the budget of a release, above 0.
        delta: of the Gaussian mechanism, between 0 and 1.
    """

    kind: NoiseKind = "laplace"
    epsilon: float
    delta: float = 1e-5

    def scale(self, l1: float, l2: float) -> float:
        """What standard noise is multiplied with: Laplace's b, or the Gaussian's standard deviation.

        Laplace has `b = l1 / epsilon`. The Gaussian's is by zero-concentrated privacy, which holds for every
        epsilon: `l2 / sqrt(2 rho)` with `sqrt(rho) = sqrt(epsilon + log(1/delta)) - sqrt(log(1/delta))`
        (Bun and Steinke, TCC 2016, Propositions 1.3 and 1.6).

        Args:
            l1: how far one example can move the release, in sum.
            l2: the same, by the Euclidean norm.
        """
        if self.kind == "laplace":
            return l1 / self.epsilon
        return l2 / sqrt(2 * self.rho)

    @property
    def rho(self) -> float:
        """Of the Gaussian: the budget of a release by zero-concentrated privacy."""
        far = log(1 / self.delta)
        return (sqrt(self.epsilon + far) - sqrt(far)) ** 2

    def total_epsilon(self, releases: int) -> float:
        """The epsilon of so many releases together, with the Gaussian at the same delta as one.

        Laplace's epsilons add up (basic composition). Of the Gaussian the budgets rho do (Bun and Steinke,
        Lemma 1.7), and `k rho` is (`k rho + 2 sqrt(k rho log(1/delta))`, delta)-private (Proposition 1.3): of
        one release that is epsilon again.
        """
        if self.kind == "laplace":
            return releases * self.epsilon
        spent = releases * self.rho
        return spent + 2 * sqrt(spent * log(1 / self.delta))

    def prediction_scale(self, classes: int, several_labels: bool) -> float:
        """The scale for one soft prediction, which any other could stand in place of.

        Two of them differ by at most 2 in sum and sqrt(2) by the Euclidean norm; where an example has several
        labels, by 1 in each of them.
        """
        return self.scale(classes, sqrt(classes)) if several_labels else self.scale(2.0, sqrt(2.0))

    def draw_standard_noise(self, stream: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Noise of scale 1, float32 of this shape."""
        draw = stream.laplace if self.kind == "laplace" else stream.standard_normal
        return draw(size=shape).astype(np.float32)

    def record(self) -> dict[str, Any]:
        """What a record says of it."""
        said = {"noise": self.kind, "epsilon": self.epsilon}
        return said if self.kind == "laplace" else {**said, "delta": self.delta}


def make_privacy_record(
    labels: Mechanism | None, predictions: Mechanism | None, released: int
) -> dict[str, Any]:
    """What a record says of the budgets, {} without noise.

    Args:
        labels: the noise on a client's label distribution.
        predictions: that on each of its predictions.
        released: how many predictions a client that came every time has sent. Together they are
            `epsilon_total`-private; with Gaussian noise (`epsilon_total`, `delta_total`)-private.
    """
    said: dict[str, Any] = {}
    if labels is not None:
        said["labels"] = labels.record()
    if predictions is not None:
        total: dict[str, Any] = {"epsilon_total": predictions.total_epsilon(released)}
        if predictions.kind == "gaussian":
            total["delta_total"] = predictions.delta
        said["predictions"] = {**predictions.record(), "released": released, **total}
    return said


def add_label_noise(
    counts: NDArray[np.float64], mechanism: Mechanism, stream: np.random.Generator
) -> NDArray[np.float64]:
    """A client's label distribution as it tells it: with noise, cut at 0 and of sum 1 again.

    Another example in place of one of the client's n moves two of its shares by 1/n each, so the norms are
    2/n and sqrt(2)/n. How many examples it has is taken to be known.

    Args:
        counts: float64 `[classes]`, each of its examples counted once.
        mechanism: of the noise.
        stream: of the client.
    """
    total = max(counts.sum(), 1.0)
    scale = mechanism.scale(2 / total, sqrt(2) / total)
    noisy = counts / total + scale * mechanism.draw_standard_noise(stream, counts.shape)
    cut = np.maximum(noisy, 0.0)
    return cut / cut.sum() if cut.sum() > 0 else np.full_like(counts, 1 / len(counts))
