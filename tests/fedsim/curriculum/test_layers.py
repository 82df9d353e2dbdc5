"""Blocks that open one after another around any algorithm: identities, closed blocks, bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, FedBABU, LayerSchedule
from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining
from fedsim.curriculum import LayerCurriculum
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from tests.fedsim.federations import federation

BASELINES = ["fedavg", "fedper", "lg_fedavg", "fedrep", "fedrod"]
LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3)


def deep(rounds: int = 4, cohort_size: int = 4) -> Population:
    """An MLP of three hidden blocks and a head."""
    sizes = [8, 11, 16, 20, 24, 30]
    return federation(sizes, rounds=rounds, cohort_size=cohort_size, local=LOCAL, hidden=6, layers=3)


def run(algorithm: Algorithm, population: Population) -> tuple[list[RoundResult], Any]:
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool)), pool.client_states()


@pytest.mark.parametrize("name", BASELINES)
def test_with_all_blocks_open_it_is_the_method_bit_for_bit(name: str) -> None:
    population, base = deep(), ALGORITHMS[name]()
    plain, kept = run(base, population)
    wrapped, ours = run(LayerCurriculum(base=base, times=(0, 0, 0)), population)
    assert [r.digest for r in wrapped] == [r.digest for r in plain]
    assert [r.traffic for r in wrapped] == [r.traffic for r in plain]
    assert [r.cost for r in wrapped] == [r.cost for r in plain]
    assert digest(ours) == digest(kept)


@pytest.mark.parametrize("order", ["vanilla", "anti"])
def test_around_fedbabu_it_is_the_layer_schedule(order: Any) -> None:
    population, times = deep(), (0, 1, 3)
    schedule, _ = run(LayerSchedule(order=order, times=times, tuning_epochs=0), population)
    wrapped, _ = run(LayerCurriculum(base=FedBABU(tuning_epochs=0), order=order, times=times), population)
    for one, other in zip(schedule, wrapped, strict=True):
        assert digest(one.state.params) == digest(other.state.params)
        assert (one.traffic, one.cost) == (other.traffic, other.cost)
        assert one.method["open_blocks"] == other.method["open_blocks"]


@pytest.mark.parametrize("name", [*BASELINES, "apfl"])
def test_closed_blocks_keep_their_first_values_and_all_else_learns(name: str) -> None:
    population = deep(rounds=2)
    method = LayerCurriculum(base=ALGORITHMS[name](), times=(0, 0, 5))
    results, kept = run(method, population)
    ctx = population.context(1)
    first, closed = ctx.init_params(), method.list_closed_keys(ctx)
    assert len(closed) == 2
    moved = set[str]()
    for held in (results[-1].state.params, *kept.values()):
        for path, value in tree.leaves(held):
            moved |= {key for key in first if path.endswith(key) and not torch.equal(value, first[key])}
    assert moved == set(ctx.net.parameters) - closed


def test_closed_blocks_cost_no_bytes() -> None:
    population = deep(rounds=1)
    ((plain,), _), ((wrapped,), _) = (
        run(each, population) for each in (FedAvg(), LayerCurriculum(base=FedAvg(), times=(0, 9, 9)))
    )
    ctx = population.context(0)
    closed = LayerCurriculum(base=FedAvg(), times=(0, 9, 9)).list_closed_keys(ctx)
    saved = 4 * 4 * sum(ctx.init_params()[key].numel() for key in closed)
    assert plain.traffic.down - wrapped.traffic.down == plain.traffic.up - wrapped.traffic.up == saved > 0
    assert wrapped.cost.updates < plain.cost.updates


def test_stacked_clients_keep_closed_blocks_too() -> None:
    population, method = deep(), LayerCurriculum(base=FedAvg(), times=(0, 1, 9), order="anti")
    alone = run(method, population)[0][-1].state.params
    *_, last = simulate(method, population, StackedPool(method, population, 2))
    for key, value in alone.items():
        torch.testing.assert_close(last.state.params[key], value, rtol=1e-4, atol=1e-5)
