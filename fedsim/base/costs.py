"""Traffic and Cost: what a round costs its clients, in bytes and in computation.

Engine, store, REST and files use these two types. The module imports neither torch nor Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from operator import add
from typing import NamedTuple


@dataclass(frozen=True)
class Traffic:
    """Simulated bytes of one round, summed over the clients of its cohort.

    Attributes:
        down: bytes from the server to the clients.
        up: bytes from the clients to the server.
        by_payload: {payload name: bytes of both directions}.
        personal: bytes sent to the clients for the personal evaluation after the round. `down` leaves them
            out: a real federation sends its last model once, however often fedsim evaluates it.
    """

    down: int = 0
    up: int = 0
    by_payload: Mapping[str, int] = field(default_factory=dict)
    personal: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        both = Counter(self.by_payload) + Counter(other.by_payload)
        personal = self.personal + other.personal
        return Traffic(self.down + other.down, self.up + other.up, dict(both), personal)

    def scale(self, times: float) -> Traffic:
        """Return this traffic times a factor, in whole bytes."""
        sizes = {name: round(times * size) for name, size in self.by_payload.items()}
        ways = (self.down, self.up, self.personal)
        down, up, personal = (round(times * size) for size in ways)
        return Traffic(down, up, sizes, personal)


@dataclass(frozen=True)
class Cost:
    """The work of clients, summed over them.

    Attributes:
        updates: parameter updates of the training: the number of moving parameters, summed over all steps.
        flops: floating-point operations of the training's forward and backward passes.
        tuning_updates, tuning_flops: the same of fine-tuning before the personal evaluation.
    """

    updates: int = 0
    flops: int = 0
    tuning_updates: int = 0
    tuning_flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))


MOST_TIMES = 20
"""The largest number of clients whose times a record has."""


class ClientTime(NamedTuple):
    """When a client was busy with a round.

    Attributes:
        client: its number.
        start: when its download began, in simulated seconds since the start of the run.
        end: when its update arrived, or it vanished, or the server no longer waited for it.
        counts: whether its update counted.
    """

    client: int
    start: float
    end: float
    counts: bool = True


def select_latest(times: Iterable[ClientTime]) -> tuple[ClientTime, ...]:
    """Return the clients that ended last, at most `MOST_TIMES`, in order of their ends.

    >>> latest = select_latest(ClientTime(client, 0.0, 9.0 - client % 3) for client in range(30))
    >>> [each.client for each in latest[:3]], latest[-1].client
    ([1, 4, 7], 27)
    """
    ranked = sorted(times, key=lambda each: (each.end, each.client))
    return tuple(ranked[-MOST_TIMES:])


MOST_LEFT_OUT = 1000
"""The largest number of clients in `ClockReading.left_out`: of many, a record would take megabytes."""


def select_left_out(clients: Iterable[int]) -> tuple[int, ...]:
    """Return the clients with the smallest numbers, at most `MOST_LEFT_OUT`."""
    return tuple(sorted(clients)[:MOST_LEFT_OUT])


@dataclass(frozen=True)
class ClockReading:
    """The simulated seconds and the energy of one round, in a run whose clients have devices.

    Attributes:
        total: simulated seconds since the start of the run, after this round.
        round: simulated seconds of this round: the sum of the three parts below.
        survey: seconds of the client survey; 0 without one.
        clients: seconds for which the server waited for clients.
        server: seconds of the server's own operations.
        idle: seconds that clients waited for the end of the round after their upload, summed over them.
        joules: energy of all clients of the round, also of those whose updates were left out.
        waited_for: the last client whose update counted; None if the server then waited for others in vain.
        left_out: clients whose updates did not count, because they were late or vanished; only the first ones
            (`select_left_out`).
        num_left_out: number of all of them; 0 in records of older versions.
        shortened: number of clients that did less work, to be in time.
        staleness: mean number of server steps between the download and the arrival of an update, in a round
            of an asynchronous policy; None in a synchronous round.
        max_staleness: the largest of these numbers.
        timeline: when the clients were busy, of those that ended last (`select_latest`).
    """

    total: float
    round: float
    survey: float = 0.0
    clients: float = 0.0
    server: float = 0.0
    idle: float = 0.0
    joules: float = 0.0
    waited_for: int | None = None
    left_out: tuple[int, ...] = ()
    num_left_out: int = 0
    shortened: int = 0
    staleness: float | None = None
    max_staleness: int | None = None
    timeline: tuple[ClientTime, ...] = ()
