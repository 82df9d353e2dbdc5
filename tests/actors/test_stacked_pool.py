"""Clients that train at once in actors: the same bits as in one process, at the same width."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from actors.crew import Crew
from actors.ray_pool import RayPool
from fedsim.algorithms.scaffold import Scaffold
from fedsim.core import Batch, Context, Visit
from fedsim.net import Params
from fedsim.pools import SerialPool, StackedPool
from fedsim.population import Population
from fedsim.simulation import simulate
from fedsim.widths import width_of
from tests.fedsim.federations import federation

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("width", [1, 3])
def test_digests_do_not_depend_on_where_stacks_train(width: int, crew: Crew) -> None:
    population = federation(cohort_size=8, rounds=3)
    expected = list(simulate(Scaffold(), population, StackedPool(Scaffold(), population, width)))
    found = list(simulate(Scaffold(), population, RayPool(Scaffold(), population, crew, stack=width)))
    assert [(r.digest, r.memory_digest) for r in found] == [(r.digest, r.memory_digest) for r in expected]
    assert [r.engine["width"] for r in found] == [width] * 3
    assert [r.engine.get("stacked") for r in found] == [r.engine.get("stacked") for r in expected]


@dataclass(frozen=True, kw_only=True)
class Large(Scaffold):
    """More than two clients at once run out of memory."""

    def loss(self, ctx: Context, visit: Visit, params: Params, batch: Batch) -> Tensor:
        weights = params["head.bias"]
        while torch._C._functorch.is_batchedtensor(weights):
            weights = torch._C._functorch.get_unwrapped(weights)
            if len(weights) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(ctx, visit, params, batch)


def test_too_little_memory_halves_the_width_and_loses_nothing(crew: Crew) -> None:
    population = federation(cohort_size=8, rounds=3)
    expected = list(simulate(Large(), population, StackedPool(Large(), population, 2)))
    pool = RayPool(Large(), population, crew, stack=4)
    found = list(simulate(Large(), population, pool))
    assert [(r.digest, r.memory_digest) for r in found] == [(r.digest, r.memory_digest) for r in expected]
    assert pool.width == 2
    assert [r.engine["width"] for r in found] == [2] * 3


def one_by_one(population: Population) -> list[str]:
    return [r.digest for r in simulate(Scaffold(), population, SerialPool(Scaffold(), population))]


def test_the_automatic_width_depends_on_the_device_and_the_model(crew: Crew) -> None:
    population = federation(cohort_size=8, rounds=1)
    assert [width_of(stack, population, "cuda") for stack in ("auto", "off", 5)] == [8, 1, 5]
    assert [width_of(stack, population, "cpu") for stack in ("auto", "off", 5)] == [1, 1, 5]
    much = replace(population, local=replace(population.local, batch_size=10**7))
    assert width_of("auto", much, "cuda") == 1
    pool = RayPool(Scaffold(), population, crew, stack="auto")
    assert [r.digest for r in simulate(Scaffold(), population, pool)] == one_by_one(population)
