"""The event loop of asynchronous rounds, against a direct simulation in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from fedsim.base import rng
from fedsim.clock.flights import EndedFlights, FlightQueue, InFlight


def seconds_of(client: int, version: int) -> float:
    """Seconds that differ between clients and versions; a few clients are as fast as another one."""
    return 1.0 + (client // 2) * 0.37 + (7 * client + 3 * version) % 5 * 0.25


def run(queue: FlightQueue, steps: int, size: int, first: int = 0) -> list[EndedFlights]:
    return [
        queue.fill_buffer(version, size, lambda clients, now=version: [seconds_of(k, now) for k in clients])
        for version in range(first, first + steps)
    ]


class Plain(NamedTuple):
    """A step of the direct simulation: when it happened, and who had which version."""

    time: float
    updates: list[tuple[int, int]]


def simulate_directly(num_clients: int, steps: int, size: int) -> list[Plain]:
    """FedBuff, Algorithm 1, where every client trains whenever it may: no queue and no random numbers."""
    time, version = 0.0, 0
    begun: dict[int, tuple[float, int]] = {}  # client: when its update arrives, its version
    buffer: list[tuple[int, int]] = []
    done: list[Plain] = []
    while len(done) < steps:
        arriving = sorted(client for client in begun if begun[client][0] == time)
        if arriving:
            client = arriving[0]
            buffer.append((client, begun.pop(client)[1]))
            if len(buffer) == size:
                done.append(Plain(time, buffer))
                buffer, version = [], version + 1
            continue
        counted = {client for client, _ in buffer}
        for client in range(num_clients):
            if client not in begun and client not in counted:
                begun[client] = (time + seconds_of(client, version), version)
        time = min(arrival for arrival, _ in begun.values())
    return done


@pytest.mark.parametrize("size", [1, 4, 5])
def test_the_order_is_that_of_a_direct_simulation(size: int) -> None:
    """1,000 events: who arrives when, with which version."""
    clients, steps = 10, 1000 // size
    found = run(FlightQueue(clients, clients, seed=0), steps, size)
    expected = simulate_directly(clients, steps, size)
    assert [[(each.client, each.version) for each in step.arrived] for step in found] == [
        step.updates for step in expected
    ]
    assert [step.arrived[-1].end for step in found] == pytest.approx([step.time for step in expected])
    stale = [version - each.version for version, step in enumerate(found) for each in step.arrived]
    assert max(stale) > 1


def test_as_many_clients_as_places_are_in_flight() -> None:
    queue = FlightQueue(6, 40, seed=3)
    for version in range(60):
        before = {flight.client for flight in queue.flights}
        [step] = run(queue, 1, 4, version)
        assert len({each.client for each in step.arrived}) == 4  # each counts at most once
        assert all(each.client in before or each.version == version for each in step.arrived)
        assert len({flight.client for flight in queue.flights}) == len(queue.flights)
        # A place is filled as soon as time goes on.
        assert len(queue.flights) + sum(each.end == queue.now for each in step.arrived) == 6


def test_all_clients_come_equally_often() -> None:
    queue, counts = FlightQueue(8, 30, seed=1), np.zeros(30, int)
    for version in range(600):
        ended = queue.fill_buffer(version, 5, lambda clients: [1.0 + client % 3 for client in clients])
        np.add.at(counts, [each.client for each in ended.arrived], 1)
    assert counts.min() > 60
    assert counts.max() < 140


def test_the_first_draw_of_a_version_is_the_cohort_of_a_round() -> None:
    """If all arrive at the same time, every step has the cohort of a synchronous round."""
    queue = FlightQueue(5, 50, seed=9)
    for version in range(6):
        ended = queue.fill_buffer(version, 5, lambda clients: [2.0] * len(clients))
        drawn = rng.stream(9, "cohort", version).choice(50, 5, replace=False)
        assert [each.client for each in ended.arrived] == sorted(drawn.tolist())
        assert {each.version for each in ended.arrived} == {version}
        assert queue.now == 2.0 * (version + 1)


def test_updates_that_arrive_together_after_a_deadline_are_of_one_step() -> None:
    queue = FlightQueue(4, 10, seed=0)
    for version in range(3):
        ended = queue.wait_until_deadline(version, 1.0, lambda clients: [2.0] * len(clients))
        assert [each.version for each in ended.arrived] == [version] * 4
        assert queue.now == 2.0 * (version + 1)


def test_a_federation_smaller_than_its_places_has_free_ones() -> None:
    queue = FlightQueue(3, 3, seed=0)
    steps = run(queue, 20, 3)
    assert all(sorted(each.client for each in step.arrived) == [0, 1, 2] for step in steps)
    assert all(each.version == version for version, step in enumerate(steps) for each in step.arrived)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("clients", [12, 200])
def test_a_queue_goes_on_where_it_was(clients: int, dropout: float) -> None:
    whole = FlightQueue(7, clients, seed=5, dropout=dropout)
    expected = run(whole, 30, 3)
    first = FlightQueue(7, clients, seed=5, dropout=dropout)
    begun = run(first, 11, 3)
    held = InFlight(first.now, first.started, tuple(reversed(first.flights)), {})
    rest = run(FlightQueue(7, clients, seed=5, dropout=dropout, resume=held), 19, 3, first=11)
    assert [*begun, *rest] == expected


def test_clients_that_vanish_free_their_place() -> None:
    queue = FlightQueue(10, 100, seed=2, dropout=0.3)
    steps = run(queue, 200, 5)
    lost = [flight for step in steps for flight in step.vanished]
    arrived = [flight for step in steps for flight in step.arrived]
    assert 0.25 < len(lost) / (len(lost) + len(arrived)) < 0.35
    assert all(flight.start <= flight.end < flight.start + 60 for flight in lost)
    ends: Sequence[float] = [step.arrived[-1].end for step in steps]
    assert all(earlier <= later for earlier, later in pairwise(ends))


def test_infinitely_fast_clients_never_stop_time() -> None:
    queue = FlightQueue(4, 20, seed=0, dropout=0.5)
    for version in range(50):
        ended = queue.fill_buffer(version, 3, lambda clients: [0.0] * len(clients))
        assert len(ended.arrived) == 3
    assert queue.now == 0


def test_a_deadline_keeps_late_clients_in_flight() -> None:
    """Clients take 1 to 5 seconds; the server steps every 2."""
    queue = FlightQueue(5, 5, seed=0)

    def step(version: int) -> tuple[list[tuple[int, int]], float]:
        ended = queue.wait_until_deadline(version, 2.0, lambda clients: [1.0 + client for client in clients])
        return [(each.client, each.version) for each in ended.arrived], ended.until

    assert [step(version) for version in range(4)] == [
        ([(0, 0), (1, 0)], 2.0),
        ([(0, 1), (2, 0), (1, 1), (3, 0)], 4.0),
        ([(0, 2), (4, 0), (1, 2)], 6.0),
        ([(0, 3), (2, 2), (1, 3), (3, 2)], 8.0),
    ]


def test_a_deadline_before_the_first_client_waits_for_it() -> None:
    queue = FlightQueue(3, 3, seed=0)
    ended = queue.wait_until_deadline(0, 0.5, lambda clients: [4.0 + client for client in clients])
    assert [(each.client, each.end) for each in ended.arrived] == [(0, 4.0)]
    assert ended.until == 4.0
    rest = queue.wait_until_deadline(1, 9.0, lambda clients: [1.0 for _ in clients])
    assert [each.client for each in rest.arrived] == [0, 1, 2]
    assert rest.until == 6.0  # all have arrived before the deadline


def test_a_deadline_ends_though_clients_vanish() -> None:
    queue = FlightQueue(3, 30, seed=0, dropout=0.8)
    for version in range(40):
        ended = queue.wait_until_deadline(version, 1.0, lambda clients: [0.6 for _ in clients])
        assert ended.arrived
