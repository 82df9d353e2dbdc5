"""Samplers on workers: the clients, digests and traffic of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg
from fedsim.data.places import DataRoots
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.samplers import SAMPLERS, CohortSampling
from tests.fedsim.federations import federation


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_workers_select_the_same_clients(name: str, actor_group: ActorGroup, tmp_path: Path) -> None:
    population = federation(cohort_size=4)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    population = replace(population, nets=tuple(make_net(model, **shape) for model in ("mlp", "logistic")))
    (tmp_path / "online.csv").write_text("client,start,end\n1,0,9\n3,0,9\n4,0,9\n")
    sampler = SAMPLERS[name](**({"path": "online.csv"} if name == "trace" else {}))
    sampler = sampler.prepare(DataRoots((tmp_path,)), population.partition.num_clients)
    algorithm = CohortSampling(base=FedAvg(), sampler=sampler)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    found = simulate(algorithm, population, RayPool(algorithm, population, actor_group))
    for one, other in zip(found, expected, strict=True):
        assert (one.cohort, one.digest, one.traffic) == (other.cohort, other.digest, other.traffic)
