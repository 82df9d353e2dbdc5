"""The robust rules, recomputed in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsim.uploads.aggregators import (
    AGGREGATORS,
    Aggregator,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    put_in_buckets,
)

Array = NDArray[np.float64]


def combine(rule: Aggregator, updates: Array, weights: Array | None = None) -> Array:
    masses = np.ones(len(updates)) if weights is None else weights
    tensors = [torch.from_numpy(np.asarray(a, np.float64)) for a in (updates, masses, updates)]
    return np.asarray(rule.combine(*tensors).update)


@pytest.fixture(params=[1, 2, 7, 10])
def updates(request: pytest.FixtureRequest) -> Array:
    return np.random.default_rng(request.param).normal(size=(request.param, 5))


def krum_order(updates: Array, attackers: int) -> list[int]:
    scores = []
    for i, one in enumerate(updates):
        others = sorted(((one - other) ** 2).sum() for j, other in enumerate(updates) if j != i)
        scores.append(sum(others[: max(1, len(updates) - attackers - 2)]))
    return list(np.argsort(scores, kind="stable"))


def test_the_median_of_each_coordinate(updates: Array) -> None:
    assert combine(Median(), updates) == pytest.approx(np.median(updates, axis=0))


def test_the_trimmed_mean_leaves_the_same_number_out_on_both_sides(updates: Array) -> None:
    cut = int(0.3 * len(updates))
    kept = np.sort(updates, axis=0)[cut : len(updates) - cut]
    assert combine(TrimmedMean(trim=0.3), updates) == pytest.approx(kept.mean(0))


def test_krum_takes_the_update_with_the_nearest_neighbours(updates: Array) -> None:
    order = krum_order(updates, int(0.2 * len(updates)))
    assert combine(Krum(), updates) == pytest.approx(updates[order[0]])
    chosen = updates[order[: len(updates) - int(0.2 * len(updates))]]
    assert combine(MultiKrum(), updates) == pytest.approx(chosen.mean(0))
    assert combine(MultiKrum(selected=3), updates) == pytest.approx(updates[order[:3]].mean(0))


def test_the_geometric_median_has_the_smallest_sum_of_distances() -> None:
    rng = np.random.default_rng(0)
    updates, weights = rng.normal(size=(9, 2)), rng.uniform(1, 5, 9)
    found = combine(GeometricMedian(iterations=300), updates, weights)

    def cost(point: Array) -> float:
        return float(weights @ np.linalg.norm(updates - point, axis=1))

    assert all(cost(found) <= cost(found + 1e-3 * step) for step in rng.normal(size=(50, 2)))


def test_three_steps_of_weiszfeld(updates: Array) -> None:
    weights = np.arange(1.0, len(updates) + 1)
    point = np.average(updates, axis=0, weights=weights)
    for _ in range(3):
        distances = np.maximum(np.linalg.norm(updates - point, axis=1), 1e-6)
        point = np.average(updates, axis=0, weights=weights / distances)
    assert combine(GeometricMedian(iterations=3), updates, weights) == pytest.approx(point)


@pytest.mark.parametrize("bound", [None, 0.5, 1e9])
def test_norm_clipping_bounds_every_update(updates: Array, bound: float | None) -> None:
    norms, weights = np.linalg.norm(updates, axis=1), np.arange(1.0, len(updates) + 1)
    most = np.median(norms) if bound is None else bound
    clipped = updates * np.minimum(1, most / norms)[:, None]
    found = combine(NormClipping(max_norm=bound), updates, weights)
    assert found == pytest.approx(np.average(clipped, axis=0, weights=weights))


def foolsgold_weights(history: Array) -> Array:
    """The loop of the paper's Algorithm 1."""
    n = len(history)
    units = history / np.linalg.norm(history, axis=1, keepdims=True)
    alike = units @ units.T - 2 * np.eye(n)
    largest = alike.max(1)
    for i in range(n):
        for j in range(n):
            if i != j and largest[i] < largest[j]:
                alike[i, j] *= max(largest[i] / largest[j], 0)
    weights = np.clip(1 - alike.max(1), 0, 1)
    weights = np.minimum(weights / weights.max(), 0.99)
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(weights / (1 - weights)) + 0.5, 0, 1))


def test_foolsgold_weighs_sybils_down() -> None:
    rng = np.random.default_rng(3)
    sybils = rng.normal(size=20) + rng.normal(scale=0.01, size=(4, 20))
    updates = np.concatenate([rng.normal(size=(6, 20)), sybils])
    weights = foolsgold_weights(updates)
    assert weights[6:].max() < 0.01 < weights[:6].min()
    expected = weights @ updates / weights.sum()
    assert combine(FoolsGold(), updates) == pytest.approx(expected)


def test_fltrust_weighs_by_the_cosine_with_the_server() -> None:
    rng = np.random.default_rng(2)
    server = rng.normal(size=20)
    updates = np.concatenate([server + rng.normal(size=(5, 20)), -9 * server + rng.normal(size=(3, 20))])
    norms, norm = np.linalg.norm(updates, axis=1), np.linalg.norm(server)
    trust = np.maximum(updates @ server / norms / norm, 0)
    assert (trust[5:] == 0).all()
    expected = trust @ (updates * (norm / norms)[:, None]) / trust.sum()
    tensors = [torch.from_numpy(a) for a in (updates, np.ones(8), server[None])]
    found = FLTrust().combine(*tensors)
    assert found.update.numpy() == pytest.approx(expected)


def test_a_rule_finds_the_honest_mean_beside_far_attackers() -> None:
    rng = np.random.default_rng(1)
    honest = 1 + 0.01 * rng.normal(size=(8, 6))
    updates = np.concatenate([honest, np.full((2, 6), -500.0)])
    for name in ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median"):
        assert combine(AGGREGATORS[name](), updates) == pytest.approx(np.ones(6), abs=0.05), name
    assert combine(Mean(), updates).max() < -90


@pytest.mark.parametrize("name", AGGREGATORS)
def test_equal_updates_stay_as_they_are(name: str) -> None:
    if name in ("foolsgold", "fltrust"):  # equal updates are sybils, or of the server's length
        return
    update = np.random.default_rng(5).normal(size=4)
    assert combine(AGGREGATORS[name](), np.tile(update, (6, 1))) == pytest.approx(update)


def test_buckets_are_weighted_means() -> None:
    updates, weights = np.arange(10.0).reshape(5, 2), np.array([1.0, 2, 3, 4, 5])
    order = np.array([4, 0, 2, 1, 3])
    arguments: list[Any] = [torch.from_numpy(each) for each in (updates, weights, order)]
    means, masses, buckets = put_in_buckets(*arguments, 2)
    groups = [[4, 0], [2, 1], [3]]
    expected = [np.average(updates[group], axis=0, weights=weights[group]) for group in groups]
    assert means.numpy() == pytest.approx(np.array(expected))
    assert masses.tolist() == [weights[group].sum() for group in groups]
    assert buckets.tolist() == [0, 1, 1, 2, 0]


def test_each_attacker_may_be_in_a_bucket_of_its_own() -> None:
    """A fifth of 20 clients is 4; in buckets of 2 they can change 4 of 10 updates."""
    updates = np.concatenate([np.full((4, 3), -20.0), np.ones((6, 3))])
    for rule in (TrimmedMean(bucket_size=2), MultiKrum(bucket_size=2)):
        assert combine(rule, updates) == pytest.approx(np.ones(3))
        assert combine(replace(rule, bucket_size=1), updates).min() < 0


def test_krum_says_if_an_update_has_no_neighbours() -> None:
    assert [bool(Krum(attackers=0.4).explain_too_few(n)) for n in (2, 3, 4)] == [True, True, False]
    assert not Median().explain_too_few(1)


@pytest.mark.parametrize(
    ("rule", "fewest"),
    [
        (TrimmedMean(trim=0.2), 5),
        (TrimmedMean(trim=0.2, bucket_size=2), 3),
        (TrimmedMean(trim=0.0), 1),
        (MultiKrum(attackers=0.2), 5),
        (MultiKrum(attackers=0.2, selected=6), 7),
        (MultiKrum(attackers=0.0), 3),
    ],
)
def test_a_rule_that_leaves_nothing_out_says_so(rule: Aggregator, fewest: int) -> None:
    """Five updates are the fewest of which a fifth is one; Krum alone needs three."""
    assert [bool(rule.explain_too_few(n)) for n in range(1, 9)] == [n < fewest for n in range(1, 9)]
