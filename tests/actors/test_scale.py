"""Large cohorts on actors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from ray.experimental import get_local_object_locations

from actors.actor_group import LEAST_STORED_BYTES, ActorGroup
from actors.call_sizes import SPAN_MEMORY_BYTES, max_blocks_per_span
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.data.partition import SampledPartition
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything
from tests.open_actors import open_actors


@pytest.fixture(scope="module")
def actor_group(ray_cluster: None) -> Iterator[ActorGroup]:
    with open_actors(2) as actor_group:
        yield actor_group


def crowd(cohort_size: int) -> Population:
    small = federation(local=LocalTraining(steps=1, batch_size=4, lr=0.1), cohort_size=cohort_size, rounds=1)
    total = len(small.dataset.train)
    net = make_net("logistic", input_shape=small.dataset.input_shape, num_classes=small.dataset.num_classes)
    partition = SampledPartition(clients=100_000, examples=4, total=total, seed=1)
    return replace(small, partition=partition, nets=(net,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(FedAvg(), marks=pytest.mark.weekly, id="fedavg"),
        pytest.param(Everything(), id="stateful"),
    ],
)
def test_a_thousand_clients_in_a_round_give_the_same_bits(
    algorithm: Algorithm, actor_group: ActorGroup
) -> None:
    population = crowd(1000)
    reference = SerialPool(algorithm, population)
    (expected,) = simulate(algorithm, population, reference)
    pool = RayPool(algorithm, population, actor_group)
    (found,) = simulate(algorithm, population, pool)
    assert found.digest == expected.digest
    assert found.metrics == expected.metrics
    assert found.traffic == expected.traffic
    assert len(found.cohort) == 1000
    memories = pool.client_states()
    assert memories.keys() == reference.client_states().keys()
    for client, memory in reference.client_states().items():
        assert all(torch.equal(value, memories[client][name]) for name, value in memory.items())


class Keeps(FedAvg):
    """Clients keep so many bytes."""

    stateful = True

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        diary = torch.zeros(4 * LEAST_STORED_BYTES // 4)
        return ClientUpdate({"params": task.broadcast["params"]}, {"diary": diary}, {})


@pytest.mark.slow
def test_client_states_lie_in_the_object_store_and_not_in_the_coordinator(actor_group: ActorGroup) -> None:
    population = crowd(20)
    pool = RayPool(Keeps(), population, actor_group)
    list(simulate(Keeps(), population, pool))
    references = list(pool._client_states.values())
    where = get_local_object_locations(references)
    assert len(references) == 20
    assert all(where[reference]["node_ids"] for reference in references)


def test_an_actor_is_given_few_clients_at_once_where_they_keep_much() -> None:
    """A client's memory counts twice, old and new; the estimate is that it is as large as the broadcast."""
    blocks = [(client,) for client in range(64)]
    quarter = {"0": {"params": {"w": np.empty(SPAN_MEMORY_BYTES // 8 // 4, np.float32)}}}
    assert max_blocks_per_span(blocks, quarter) == 4
    assert max_blocks_per_span([(1, 2), (3, 4)], quarter) == 2
    assert max_blocks_per_span([tuple(range(9))], quarter) == 1
    assert max_blocks_per_span(blocks, {"0": {"params": {"w": np.empty(10, np.float32)}}}) > 1000
