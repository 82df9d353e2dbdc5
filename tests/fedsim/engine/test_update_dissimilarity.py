"""The dissimilarity of a round's updates, recomputed in NumPy; it changes no round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms import FedAvg, FedPer, Scaffold
from fedsim.base.digest import digest
from fedsim.core import Algorithm
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.evaluation.update_dissimilarity import UpdateDissimilarity
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation
from tests.fedsim.methods import run


def test_it_is_the_mean_squared_norm_by_the_squared_norm_of_the_mean() -> None:
    population, method = federation(cohort_size=4, rounds=3), UpdateDissimilarity(base=FedAvg())
    pool, keys = SerialPool(FedAvg(), population), population.nets[0].parameters
    before: Any = FedAvg().init_server_state(population.context(0))
    for result in run(method, population):
        ctx, changes, sizes = population.context(result.round - 1), [], []
        broadcast = FedAvg().broadcast(ctx, before)
        for client in result.cohort:
            task = pool.worker.loader.make_task(FedAvg(), ctx, client, broadcast, {}, None)
            model = FedAvg().train_client(ctx, task).upload["params"]
            parts = [(model[key] - before.params[key]).double().numpy().ravel() for key in keys]
            changes.append(np.concatenate(parts))
            sizes.append(task.num_examples)
        mean = np.average(changes, axis=0, weights=sizes)
        squared = np.average([change @ change for change in changes], weights=sizes)
        assert result.method["update_dissimilarity"] == pytest.approx(squared / (mean @ mean), rel=1e-4)
        assert result.method["update_dissimilarity"] > 1
        before = result.state.base


@pytest.mark.parametrize("base", [FedAvg(), FedPer(), Scaffold(), ClientCurriculum(base=FedAvg())])
def test_the_rounds_are_those_of_the_method(base: Algorithm) -> None:
    population = federation(cohort_size=4, rounds=3)
    for plain, found in zip(
        run(base, population), run(UpdateDissimilarity(base=base), population), strict=True
    ):
        assert digest(found.state.base) == plain.digest
        assert (found.metrics, found.traffic, found.cost) == (plain.metrics, plain.traffic, plain.cost)


def test_a_client_alone_agrees_with_itself_and_stacked_clients_say_the_same() -> None:
    alone = federation(cohort_size=1, rounds=2)
    said = [r.method["update_dissimilarity"] for r in run(UpdateDissimilarity(base=FedAvg()), alone)]
    assert said == pytest.approx([1.0, 1.0], rel=1e-5)
    population, method = federation(cohort_size=4, rounds=2), UpdateDissimilarity(base=FedAvg())
    stacked = simulate(method, population, StackedPool(method, population, 2))
    for one, other in zip(run(method, population), stacked, strict=True):
        values = [each.method["update_dissimilarity"] for each in (one, other)]
        assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_each_architecture_has_its_own() -> None:
    nets = tuple(make_net("mlp", input_shape=(12,), num_classes=4, hidden=size) for size in (8, 6))
    population = replace(federation(cohort_size=6, rounds=1), nets=nets)
    said = run(UpdateDissimilarity(base=FedAvg()), population)[0].method["update_dissimilarity"]
    assert set(said) == {"0", "1"}
    assert min(said.values()) >= 1
