"""Flights: which clients train at which simulated time in asynchronous rounds.

The order of all events comes from simulated seconds and addressed random numbers, never from the machines
that train. The rules:

1. As many clients as a cohort has are in flight. A free place goes to a client at random, which downloads
   the newest model.
2. Updates arrive in order of time; of those of the same time, the lower client number comes first. All of
   them arrive before a place is filled again.
3. A client counts at most once in a buffer: after its update has arrived it begins no new flight before the
   server has used the update. If too few others are left, places stay free until then.
4. A client that vanishes frees its place at that time, and may begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedsim.base import rng

MeasureSeconds: TypeAlias = Callable[[Sequence[int]], Sequence[float]]
"""Returns the seconds from download to arrival of each of these clients, with the newest model."""


class Flight(NamedTuple):
    """A client's way from its download to its upload; flights are ordered by their end, then by client.

    Attributes:
        end: when the update arrives or the client vanishes, in simulated seconds since the start of the run.
        client: the number of the client.
        version: number of server steps before the model that it downloaded.
        start: when it began, in the same seconds.
        vanishes: whether the client vanishes.
    """

    end: float
    client: int
    version: int
    start: float
    vanishes: bool = False


class EndedFlights(NamedTuple):
    """The flights that ended for one server step, in order of time.

    Attributes:
        arrived: those whose updates arrived.
        vanished: those whose clients vanished.
        until: when the server stepped, in simulated seconds since the start of the run.
    """

    arrived: tuple[Flight, ...]
    vanished: tuple[Flight, ...]
    until: float


@dataclass(frozen=True)
class InFlight:
    """What a checkpoint holds of an asynchronous run, beside the server state.

    Attributes:
        now: simulated seconds since the start of the run.
        started: number of flights that have begun so far.
        flights: the present ones.
        states: {version: the server state of that version}, of the versions that a client in flight has.
    """

    now: float
    started: int
    flights: tuple[Flight, ...]
    states: Mapping[int, Any]


class FlightQueue:
    """The clients in flight, as an event loop; its memory does not depend on the number of clients.

    Args:
        places: number of clients in flight.
        num_clients: N.
        seed: of the run.
        dropout: probability that a client vanishes during its flight.
        resume: continue from here.

    Attributes:
        now: simulated seconds since the start of the run.
        started: number of flights that have begun so far; the address of their random numbers.
    """

    def __init__(
        self, places: int, num_clients: int, seed: int, dropout: float = 0.0, resume: InFlight | None = None
    ) -> None:
        self.places, self.num_clients, self.seed, self.dropout = places, num_clients, seed, dropout
        self.now, self.started = (resume.now, resume.started) if resume else (0.0, 0)
        self._flights = list(resume.flights) if resume else []
        heapify(self._flights)
        self._busy = {flight.client for flight in self._flights}
        self._drawn_version = -1

    @property
    def flights(self) -> tuple[Flight, ...]:
        """The present flights, in no order."""
        return tuple(self._flights)

    def fill_buffer(self, version: int, size: int, measure: MeasureSeconds) -> EndedFlights:
        """Let time pass until the updates of a server step are there.

        Args:
            version: number of server steps so far.
            size: number of updates of the step, at most N.
            measure: returns the seconds of clients that begin now.
        """
        arrived, vanished = list[Flight](), list[Flight]()
        while len(arrived) < size:
            if not self._flights or self._flights[0].end > self.now:
                self._fill_places(version, measure)
            self._end_flight(arrived, vanished)
        return self._end_step(arrived, vanished)

    def wait_until_deadline(self, version: int, seconds: float, measure: MeasureSeconds) -> EndedFlights:
        """Fill the places, and let time pass until a deadline; wait longer if nobody is in time.

        Args:
            version: number of server steps so far.
            seconds: from now.
            measure: returns the seconds of clients that begin now.
        """
        arrived, vanished, deadline = list[Flight](), list[Flight](), self.now + seconds
        self._fill_places(version, measure)
        while self._flights and (not arrived or self._flights[0].end <= max(deadline, self.now)):
            self._end_flight(arrived, vanished)
            if not self._flights and not arrived:
                self._fill_places(version, measure)
        if self._flights:
            self.now = max(self.now, deadline)
        return self._end_step(arrived, vanished)

    def _end_flight(self, arrived: list[Flight], vanished: list[Flight]) -> None:
        """Let time pass until the next flight ends."""
        flight = heappop(self._flights)
        self.now = flight.end
        if flight.vanishes:
            vanished.append(flight)
            self._busy.remove(flight.client)
        else:
            arrived.append(flight)

    def _end_step(self, arrived: Sequence[Flight], vanished: Sequence[Flight]) -> EndedFlights:
        """Let the clients of a server step begin anew from now on."""
        self._busy.difference_update(flight.client for flight in arrived)
        return EndedFlights(tuple(arrived), tuple(vanished), self.now)

    def _fill_places(self, version: int, measure: MeasureSeconds) -> None:
        free = min(self.places - len(self._flights), self.num_clients - len(self._busy))
        if free <= 0:
            return
        clients = self._draw_clients(version, free)
        for client, seconds in zip(clients, measure(clients), strict=True):
            vanishes = False
            if self.dropout:
                chance, share = rng.stream(self.seed, "vanish in flight", self.started).random(2)
                vanishes = bool(chance < self.dropout)
                seconds = float(share) * seconds if vanishes else seconds
            heappush(self._flights, Flight(self.now + seconds, client, version, self.now, vanishes))
            self._busy.add(client)
            self.started += 1

    def _draw_clients(self, version: int, count: int) -> list[int]:
        """Draw clients that are not busy, in ascending order."""
        # The first draw of a version has the address of the round's cohort: a run in which all clients arrive
        # at the same time has the cohorts of synchronous rounds.
        if version != self._drawn_version:
            stream, self._drawn_version = rng.stream(self.seed, "cohort", version), version
        else:
            stream = rng.stream(self.seed, "next in flight", self.started)
        if not self._busy:
            return sorted(stream.choice(self.num_clients, count, replace=False).tolist())
        if 2 * (len(self._busy) + count) > self.num_clients:
            idle = np.setdiff1d(np.arange(self.num_clients), list(self._busy))
            return sorted(stream.choice(idle, count, replace=False).tolist())
        # Draw again instead of listing the N clients: at least every second draw is good.
        found = set[int]()
        while len(found) < count:
            client = int(stream.integers(self.num_clients))
            if client not in self._busy:
                found.add(client)
        return sorted(found)
