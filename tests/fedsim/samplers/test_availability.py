"""Samplers of clients that are online at a simulated time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedsim.algorithms import FedAvg
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Equal
from fedsim.core import Context
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.samplers import CohortSampling
from fedsim.samplers.availability import DAY_SECONDS, Availability, DayNight, Markov
from tests.fedsim.federations import federation

HOUR = 3600.0


def at(seconds: float, clients: int = 4000, round: int = 0) -> Context:
    return replace(federation().context(round), clock=seconds, num_clients=clients)


def test_in_one_time_zone_clients_come_by_day() -> None:
    """At t the probability is (1 + cos(2 pi t / 24 h)) / 2."""
    for hours, share in ((0, 1.0), (6, 0.5), (8, 0.25), (12, 0.0), (18, 0.5), (24, 1.0)):
        assert DayNight().find_online(at(hours * HOUR)).mean() == pytest.approx(share, abs=0.03)
    half = DayNight(lowest=0.0).find_online(at(0.0))
    assert (half == Availability(lowest=0.0).find_online(at(0.0))).all()


def test_around_the_world_the_number_of_clients_is_constant() -> None:
    everywhere = DayNight(zones=1.0)
    for hours in (0, 5, 12):
        assert everywhere.find_online(at(hours * HOUR)).mean() == pytest.approx(0.5, abs=0.03)


def test_a_chain_has_its_shares_and_its_times() -> None:
    chain = Markov(online_seconds=1000.0, offline_seconds=3000.0)
    slots = [chain.find_online(at(100.0 * number + 1)) for number in range(60)]
    assert np.mean([slot.mean() for slot in slots]) == pytest.approx(0.25, abs=0.02)
    left = [(before & ~after).sum() / before.sum() for before, after in pairwise(slots)]
    came = [(~before & after).sum() / (~before).sum() for before, after in pairwise(slots)]
    assert np.mean(left) == pytest.approx(0.1, abs=0.01)
    assert np.mean(came) == pytest.approx(1 / 30, abs=0.005)
    assert (chain.find_online(at(42.0, round=3)) == chain.find_online(at(7.0, round=9))).all()


def test_a_run_reads_its_clock() -> None:
    """Each round takes twelve hours, so that every other round has one client."""
    population = federation(rounds=4)
    algorithm = CohortSampling(base=FedAvg(), sampler=DayNight())
    devices = Devices(fleet=Equal(latency_ms=1000 * DAY_SECONDS / 2))
    results = simulate(algorithm, population, SerialPool(algorithm, population), devices=devices)
    assert [len(result.cohort) for result in results] == [10, 1, 10, 1]
