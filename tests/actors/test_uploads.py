"""Attacks, robust rules, privacy and compression on workers: the rounds of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import Scaffold
from fedsim.core import Algorithm
from fedsim.engine.membership import draw_members
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.uploads import (
    AGGREGATORS,
    ATTACKS,
    COMPRESSORS,
    AdaptiveClip,
    AttackedClients,
    CompressedUpdates,
    PrivateExamples,
    PrivateUpdates,
    RobustAggregation,
    SecureAggregation,
)
from fedsim.uploads.accounting import PrivacyKind
from tests.fedsim.federations import federation

ROBUST = {name: RobustAggregation(base=Scaffold(), aggregator=AGGREGATORS[name]()) for name in AGGREGATORS}
ATTACKED = {
    name: AttackedClients(base=ROBUST["median"], attack=attack(share=0.4)) for name, attack in ATTACKS.items()
}


COMPRESSED = {
    name: CompressedUpdates(base=Scaffold(), compressor=COMPRESSORS[name]()) for name in COMPRESSORS
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROBUST, *ATTACKED, *COMPRESSED])
def test_workers_give_the_same_rounds(name: str, actor_group: ActorGroup) -> None:
    algorithm: Algorithm = {**ROBUST, **ATTACKED, **COMPRESSED}[name]
    population = federation(cohort_size=6)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert (one.digest, one.traffic, one.method) == (other.digest, other.traffic, other.method)


@pytest.mark.slow
def test_workers_make_the_same_private_steps(actor_group: ActorGroup) -> None:
    algorithm = PrivateExamples(base=Scaffold(), clip=0.5, noise_multiplier=0.5)
    population = federation(cohort_size=6)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert (one.digest, one.traffic, one.method) == (other.digest, other.traffic, other.method)


@pytest.mark.slow
def test_workers_count_the_same_bytes_of_secure_aggregation(actor_group: ActorGroup) -> None:
    algorithm = SecureAggregation(base=Scaffold(), neighbours=3)
    population = federation(cohort_size=6)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert (one.digest, one.traffic, one.method) == (other.digest, other.traffic, other.method)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["central", "tree", "local"])
def test_workers_draw_the_same_noise(kind: PrivacyKind, actor_group: ActorGroup) -> None:
    adaptive = AdaptiveClip(count_noise=3.0) if kind == "central" else None
    method = {"clip": 0.5, "noise_multiplier": 0.5, "adaptive": adaptive}
    algorithm = PrivateUpdates(base=Scaffold(), kind=kind, **method)  # type: ignore[arg-type]
    population = federation(cohort_size=6)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert (one.digest, one.traffic, one.method) == (other.digest, other.traffic, other.method)


@pytest.mark.slow
def test_workers_find_the_same_members(actor_group: ActorGroup) -> None:
    population, algorithm = federation(cohort_size=6), Scaffold()
    members = draw_members(population.dataset.train, population.partition.indices, 30, 7)
    population = replace(population, members=members)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert one.metrics == other.metrics
        assert "global_membership_auroc" in one.metrics
