"""Devices: what a run with a simulated clock needs to know beyond the algorithm and the data."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.clock.asynchronous import Asynchronous
from fedsim.clock.fleets import Fleet
from fedsim.clock.policies import Policy, Wait

WAIT = Wait()


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a federation, and how the server waits for them.

    Attributes:
        fleet: the devices of the clients; prepared (`Fleet.prepare`).
        policy: for whom the server waits; with an `Asynchronous` one for nobody.
        dropout: probability that a client vanishes during a round.
        server_gflops: speed of the server, in 10^9 counted operations per second; None for infinite.
    """

    fleet: Fleet
    policy: Policy | Asynchronous = WAIT
    dropout: float = 0.0
    server_gflops: float | None = None
