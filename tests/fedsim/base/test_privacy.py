"""Noise of differential privacy: what its scale rests on, by brute force, and what a record says of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.base.privacy import Mechanism, make_privacy_record
from fedsim.clients.population import Population
from fedsim.core.census import CensusQuestion
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.initial_state import answer_census, make_state_and_traffic
from fedsim.techniques.clustering import mean_cluster_distances
from tests.fedsim.federations import federation

LABELS = 3


@dataclass(frozen=True, kw_only=True)
class Silent(Mechanism):
    """Adds nothing, and notes what it was told of how far one example can move a release."""

    epsilon: float = 1.0
    handed: list[tuple[float, float]] = field(default_factory=list)

    def scale(self, l1: float, l2: float) -> float:
        """0."""
        self.handed.append((l1, l2))
        return 0.0


def labelled(mine: Any) -> Population:
    """Two clients, the first with these examples of several yes-or-no labels, the other with two."""
    y = np.array([*mine, (1, 0, 0), (0, 1, 1)], np.float32)
    x = np.zeros((len(y), 4), np.float32)
    data = Dataset(
        name="labels",
        train=Examples(x, y),
        test=Examples(x, y),
        num_classes=LABELS,
        input_shape=(4,),
        classes=("a", "b", "c"),
        task="labels",
    )
    return replace(federation([len(mine), 2]), dataset=data)


@pytest.mark.parametrize("ask", ["vector", "matrix"])
def test_one_example_of_several_labels_moves_a_distribution_no_further_than_its_scale_was_told(
    ask: Any,
) -> None:
    """All pairs of examples, and for each all that another example in place of one of them can be."""
    noise = Silent()
    pairs = list(product(product((0, 1), repeat=LABELS), repeat=2))
    told = {
        pair: answer_census(CensusQuestion(ask=ask, noise=noise), labelled(pair)).shares[0] for pair in pairs
    }
    ((l1, l2),) = set(noise.handed)  # both clients have two examples
    moved = [
        told[one] - told[other]
        for one, other in combinations(pairs, 2)
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1
    ]
    assert max(np.abs(each).sum() for each in moved) == pytest.approx(l1)
    assert max(np.linalg.norm(each) for each in moved) == pytest.approx(l2)
    assert (l1, l2) == pytest.approx((2 / 2, sqrt(2) / 2))
    assert all(each.sum() == pytest.approx(1) for each in told.values())
    assert len(told[pairs[0]]) == LABELS + 1  # who carries no label counts as one more class


def test_a_prediction_moves_no_further_than_its_scale_takes_it_to() -> None:
    """Corners are the furthest: of the simplex for classes, of the cube for yes-or-no labels."""
    laplace = Mechanism(epsilon=0.5)
    gaussian = Mechanism(kind="gaussian", epsilon=0.5, delta=1e-5)
    # sqrt(rho) = sqrt(0.5 + log 1e5) - sqrt(log 1e5), and the deviation is l2 / sqrt(2 rho)
    unit = 1 / (sqrt(2) * (sqrt(0.5 + log(1e5)) - sqrt(log(1e5))))
    for classes in (2, 5):
        corners = {False: np.eye(classes), True: np.array(list(product((0, 1), repeat=classes)))}
        for several, points in corners.items():
            apart = (points[:, None] - points[None]).reshape(-1, classes)
            l1, l2 = np.abs(apart).sum(1).max(), np.linalg.norm(apart, axis=1).max()
            assert laplace.prediction_scale(classes, several) == pytest.approx(l1 / 0.5)
            assert gaussian.prediction_scale(classes, several) == pytest.approx(l2 * unit)
    assert laplace.prediction_scale(10, several_labels=False) == pytest.approx(2 / 0.5)
    assert gaussian.prediction_scale(10, several_labels=False) == pytest.approx(sqrt(2) * unit)
    assert laplace.prediction_scale(14, several_labels=True) == pytest.approx(14 / 0.5)
    assert gaussian.prediction_scale(14, several_labels=True) == pytest.approx(sqrt(14) * unit)


def delta_of(shift: float, epsilon: float) -> float:
    """The least delta at which Gaussians of deviation 1 and this distance apart are (epsilon, delta)-private.

    Balle and Wang, ICML 2018, Theorem 8.
    """
    return float(
        norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    )


@pytest.mark.parametrize("releases", [1, 7, 40, 3000])
def test_what_many_gaussian_releases_are_together(releases: int) -> None:
    """K releases by noise of deviation s are one whose distance is sqrt(k) times as far."""
    noise = Mechanism(kind="gaussian", epsilon=0.1, delta=1e-5)
    together = noise.total_epsilon(releases)
    assert delta_of(sqrt(releases) / noise.scale(1.0, 1.0), together) <= noise.delta
    assert together <= releases * 0.1 * (1 + 1e-9)
    assert noise.total_epsilon(1) == pytest.approx(0.1)
    assert Mechanism(epsilon=0.1).total_epsilon(releases) == pytest.approx(releases * 0.1)


def test_a_record_says_what_the_noise_protects() -> None:
    labels, predictions = Mechanism(epsilon=2.0), Mechanism(kind="gaussian", epsilon=0.1)
    assert make_privacy_record(None, None, 5) == {}
    far = log(1e5)
    rho = 40 * (sqrt(0.1 + far) - sqrt(far)) ** 2
    assert make_privacy_record(labels, predictions, 40) == {
        "labels": {"noise": "laplace", "epsilon": 2.0},
        "predictions": {
            "noise": "gaussian",
            "epsilon": 0.1,
            "delta": 1e-5,
            "released": 40,
            "epsilon_total": pytest.approx(rho + 2 * sqrt(rho * far)),
            "delta_total": 1e-5,
        },
        "together": {"epsilon": pytest.approx(2.0 + rho + 2 * sqrt(rho * far)), "delta": 1e-5},
    }
    spent = make_privacy_record(None, Mechanism(epsilon=0.1), 40)["predictions"]
    assert spent == {
        "noise": "laplace",
        "epsilon": 0.1,
        "released": 40,
        "epsilon_total": pytest.approx(4.0),
    }


def test_labels_and_predictions_have_a_budget_together() -> None:
    """A Gaussian release of distance a and k of distance b are one of distance sqrt(a a + k b b)."""
    labels = Mechanism(kind="gaussian", epsilon=1.0)
    predictions = Mechanism(kind="gaussian", epsilon=0.1)
    together = make_privacy_record(labels, predictions, 40)["together"]
    distance = sqrt(1 / labels.scale(1.0, 1.0) ** 2 + 40 / predictions.scale(1.0, 1.0) ** 2)
    assert delta_of(distance, together["epsilon"]) <= together["delta"] == 1e-5
    assert 1.0 < together["epsilon"] < 1.0 + predictions.total_epsilon(40)
    laplace = make_privacy_record(Mechanism(epsilon=1.0), Mechanism(epsilon=0.1), 40)["together"]
    assert laplace == {"epsilon": pytest.approx(5.0), "delta": 0}


@pytest.mark.parametrize("clustering", ["vector", "matrix"])
def test_what_a_record_says_of_the_clusters_is_made_of_what_was_told(clustering: Any) -> None:
    population = federation()
    algorithm = AcePFL(clustering=clustering, clusters=2, label_epsilon=0.5)
    state, _ = make_state_and_traffic(algorithm, population)
    question = algorithm.plan_census(population.context(0))
    assert question is not None
    assert state.clusters is not None
    answers, exact = (
        answer_census(question, population),
        answer_census(replace(question, noise=None), population),
    )
    assert not np.allclose(answers.shares, exact.shares)
    assert state.mean_emd == pytest.approx(
        tuple(mean_cluster_distances(answers.shares, state.clusters.numpy()))
    )
    assert state.mean_emd != pytest.approx(
        tuple(mean_cluster_distances(exact.shares, state.clusters.numpy()))
    )
