"""The simulated clock on workers: the seconds, clients and digests of one process."""

from __future__ import annotations

import pytest

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg, FedPer, Scaffold
from fedsim.clock.asynchronous import Asynchronous, FedAsync, FedBuff, SemiAsynchronous
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Lognormal
from fedsim.clock.policies import Deadline, OverSelection, Policy
from fedsim.core import Algorithm
from fedsim.engine.faults import Chaos, Faults
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from tests.fedsim.federations import federation


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(), Scaffold()])
@pytest.mark.parametrize("policy", [Deadline(seconds=0.4, partial=True), OverSelection(factor=1.5)])
def test_workers_give_the_same_seconds(algorithm: Algorithm, policy: Policy, actor_group: ActorGroup) -> None:
    population = federation(cohort_size=6)
    fleet = Lognormal(gflops=2e-3, down_mbps=1.0, up_mbps=0.2, joules_per_gflop=1.0, spread=1.0)
    devices = Devices(fleet=fleet, policy=policy, dropout=0.1)
    serial = simulate(algorithm, population, SerialPool(algorithm, population), devices=devices)
    workers = simulate(algorithm, population, RayPool(algorithm, population, actor_group), devices=devices)
    readings = []
    for one, other in zip(serial, workers, strict=True):
        assert (one.cohort, one.digest, one.traffic) == (other.cohort, other.digest, other.traffic)
        assert (one.clock, one.cost, one.memory_digest) == (other.clock, other.cost, other.memory_digest)
        readings.append(one.clock)
    assert any(reading is not None and reading.left_out for reading in readings)


FLEET = Lognormal(gflops=2e-3, down_mbps=1.0, up_mbps=0.2, joules_per_gflop=1.0, spread=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(), FedPer()])
@pytest.mark.parametrize("policy", [FedBuff(buffer=4), FedAsync(), SemiAsynchronous(seconds=0.2)])
@pytest.mark.parametrize(
    "actor_group",
    [2, *(pytest.param(workers, marks=pytest.mark.weekly) for workers in (1, 5))],
    indirect=True,
)
def test_workers_give_the_same_server_steps(
    algorithm: Algorithm, policy: Asynchronous, actor_group: ActorGroup
) -> None:
    """One after the other, also when workers die, and in stacks."""
    population = federation(cohort_size=7, rounds=8)
    devices, faults = (
        Devices(fleet=FLEET, policy=policy, dropout=0.1),
        Faults(max_retries=3, chaos=Chaos(kill_actor=0.1)),
    )
    for alone, workers in (
        (SerialPool(algorithm, population), RayPool(algorithm, population, actor_group)),
        (SerialPool(algorithm, population), RayPool(algorithm, population, actor_group, faults=faults)),
        (StackedPool(algorithm, population, 3), RayPool(algorithm, population, actor_group, stack=3)),
    ):
        results = simulate(algorithm, population, workers, devices=devices)
        stale = 0
        for one, other in zip(simulate(algorithm, population, alone, devices=devices), results, strict=True):
            assert (one.cohort, one.digest, one.traffic) == (other.cohort, other.digest, other.traffic)
            assert (one.clock, one.cost, one.memory_digest) == (other.clock, other.cost, other.memory_digest)
            stale += (one.clock and one.clock.max_staleness) or 0
        assert stale
