"""Samplers of clients that are online at a simulated time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms import FedAvg
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Equal
from fedsim.core import Context
from fedsim.data.places import DataRoots
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import SpecError
from fedsim.samplers import CohortSampling
from fedsim.samplers.availability import DAY_SECONDS, Availability, DayNight, Markov
from fedsim.samplers.online_trace import OnlineTrace, ReadTrace
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
    # A run that goes on from a checkpoint asks for the last slot alone.
    Markov._follow.cache_clear()
    assert (chain.find_online(at(5901.0)) == slots[-1]).all()


def test_a_run_reads_its_clock() -> None:
    """Each round takes twelve hours, so that every other round has one client."""
    population = federation(rounds=4)
    algorithm = CohortSampling(base=FedAvg(), sampler=DayNight())
    devices = Devices(fleet=Equal(latency_ms=1000 * DAY_SECONDS / 2))
    results = simulate(algorithm, population, SerialPool(algorithm, population), devices=devices)
    assert [len(result.cohort) for result in results] == [10, 1, 10, 1]


def read(tmp_path: Path, text: str, clients: int = 4, **settings: Any) -> ReadTrace:
    (tmp_path / "online.csv").write_text(text)
    return OnlineTrace(path="online.csv", **settings).prepare(DataRoots((tmp_path,)), clients)


def test_a_trace_is_followed_and_begins_anew(tmp_path: Path) -> None:
    """Client 3 is never online; intervals include their start and exclude their end."""
    text = "client,start,end\n0,0,10\n1,5,15\n0,20,25\n2,0,30\n"
    online = {0: [0, 2], 5: [0, 1, 2], 10: [1, 2], 15: [2], 20: [0, 2], 29.5: [2]}
    for trace, period in ((read(tmp_path, text), 30), (read(tmp_path, text, repeat_seconds=100.0), 100)):
        for seconds, clients in online.items():
            for moment in (seconds, seconds + 7 * period):
                assert np.flatnonzero(trace.find_online(at(moment, 4))).tolist() == clients
    assert not trace.find_online(at(30.0, 4)).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the header ''"),
        ("client,from,to\n0,0,1\n", "has the header 'client,from,to'"),
        ("client,start,end\n", "has no interval"),
        ("client,start,end\n0,0\n", "'0,0' in line 2"),
        ("client,start,end\n0,0,1\n0,x,9\n", "'0,x,9' in line 3"),
        ("client,start,end\n0,0,inf\n", "'0,0,inf' in line 2"),
        ("client,start,end\n4,0,1\n", "client 4 in line 2, and the run 4 clients"),
        ("client,start,end\n0.5,0,1\n", "client 0.5 in line 2"),
        ("client,start,end\n0,-1,1\n", "from -1 to 1 in line 2"),
        ("client,start,end\n0,5,5\n", "from 5 to 5 in line 2"),
    ],
)
def test_a_wrong_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, text)


def test_a_run_takes_the_clients_of_its_trace(tmp_path: Path) -> None:
    """A round takes an hour: client 7 is alone online in the second one."""
    trace = read(tmp_path, "client,start,end\n3,0,100\n5,0,100\n7,3600,3700\n", 40, repeat_seconds=1e6)
    algorithm = CohortSampling(base=FedAvg(), sampler=trace)
    population = federation(rounds=2)
    devices = Devices(fleet=Equal(latency_ms=1000 * HOUR))
    results = simulate(algorithm, population, SerialPool(algorithm, population), devices=devices)
    assert [list(result.cohort) for result in results] == [[3, 5], [7]]
