"""SimulatedClock: the seconds, the idle time and the energy of each round, from counted bytes and operations.

A client's round takes

    latency + bytes down / speed of its download + FLOPs / its speed + bytes up / speed of its upload.

Nothing is measured: the bytes are those of the record, the FLOPs those of `CostMeter`, and every random
number has an address. Therefore all pools give the same seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng
from fedsim.base.costs import ClientTime, ClockReading, Traffic, select_latest, select_left_out
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous
from fedsim.clock.devices import Devices
from fedsim.clock.policies import Deadline, Tiers
from fedsim.clock.profiles import ClientWork, DeviceProfile
from fedsim.clock.tiers import find_tiers
from fedsim.core import Context
from fedsim.training.effort import CostMeter


@dataclass(frozen=True)
class MessageSizes:
    """The bytes of the messages of a round, as far as they are known before it.

    Attributes:
        down: bytes to each client that the server asks, by payload name.
        up: bytes from each of them.
    """

    down: Mapping[int, Mapping[str, int]]
    up: Mapping[int, int]


@dataclass(frozen=True)
class RoundPlan:
    """Whose updates count in a round.

    Attributes:
        cohort: the clients that train, in ascending order.
        limits: see `Context.limits`.
        until: the server waits at least until then, in seconds since it sent the broadcast.
        left_out: {client: its work} of the clients that were asked and do not count.
        vanished: {client: seconds until it vanished}.
        wasted: traffic to the clients that do not count.
    """

    cohort: tuple[int, ...]
    limits: Mapping[int, int] = field(default_factory=dict)
    until: float = 0.0
    left_out: Mapping[int, ClientWork] = field(default_factory=dict)
    vanished: Mapping[int, float] = field(default_factory=dict)
    wasted: Traffic = field(default_factory=Traffic)


class SimulatedClock:
    """The clock of one run.

    Args:
        devices: of the run.
        population: the federation.
        meter: counts the FLOPs of clients.
        total: simulated seconds before the first round of this call.
    """

    def __init__(
        self, devices: Devices, population: Population, meter: CostMeter, total: float = 0.0
    ) -> None:
        if isinstance(devices.policy, Asynchronous):
            raise TypeError("this clock has rounds; `AsynchronousRounds` has a clock of its own")
        self.policy = devices.policy
        self.devices, self.population, self.meter, self.total = devices, population, meter, total

    # before the round

    @property
    def needs_sizes(self) -> bool:
        """Whether a round has to be planned from the sizes of its messages."""
        return not self.policy.waits_for_all or self.devices.dropout > 0

    def asked_context(self, ctx: Context) -> Context:
        """Return the round with the number of clients that the server asks as its cohort size."""
        asked = self.policy.count_asked(ctx.cohort_size, ctx.num_clients)
        return ctx if asked == ctx.cohort_size else replace(ctx, cohort_size=asked)

    def select_from_tier(self, ctx: Context, stream: np.random.Generator) -> Sequence[int] | None:
        """Return a cohort from one tier, in ascending order; None without tiers."""
        policy = self.policy
        if not isinstance(policy, Tiers):
            return None
        weights = np.array(policy.probabilities or [1.0] * policy.count)
        tier = rng.stream(ctx.seed, "tier", ctx.round).choice(policy.count, p=weights / weights.sum())
        members = np.flatnonzero(self._tiers == tier)
        found = stream.choice(members, min(ctx.cohort_size, len(members)), replace=False)
        return sorted(found.tolist())

    @cached_property
    def _tiers(self) -> NDArray[np.uint8]:
        policy = self.policy
        if not isinstance(policy, Tiers):
            raise RuntimeError("this run has no tiers")
        return find_tiers(self.devices.fleet, self.population, self.meter, policy.count)

    def plan_round(self, ctx: Context, state: Any, asked: Sequence[int], sizes: MessageSizes) -> RoundPlan:
        """Decide whose updates count.

        Args:
            ctx: the round.
            state: the server state at its start.
            asked: the clients that the server asks.
            sizes: of the messages.
        """
        flops = self.meter.client_flops(ctx, state, asked)
        works = {
            client: ClientWork(sum(sizes.down[client].values()), each, sizes.up[client])
            for client, each in zip(asked, flops, strict=True)
        }
        limits = self._limit_late_clients(ctx, state, works)
        if limits:
            shorter = self.meter.client_flops(replace(ctx, limits=limits), state, list(limits))
            for client, each in zip(limits, shorter, strict=True):
                works[client] = works[client]._replace(flops=each)
        arrivals = {client: self._seconds(client, work) for client, work in works.items()}
        vanished = self._draw_vanished(ctx, arrivals)
        staying = {client: seconds for client, seconds in arrivals.items() if client not in vanished}
        accepted, until = self.policy.decide(staying, vanished, ctx.cohort_size)
        kept = set(accepted)
        left_out = {client: work for client, work in works.items() if client not in kept}
        wasted = Traffic()
        for client in left_out:
            wasted += Traffic(works[client].bytes_down, 0, sizes.down[client])
        limits = {client: limits[client] for client in accepted if client in limits}
        return RoundPlan(accepted, limits, until, left_out, vanished, wasted)

    def _limit_late_clients(
        self, ctx: Context, state: Any, works: Mapping[int, ClientWork]
    ) -> dict[int, int]:
        """Return the limits of the clients that would be late and can do less; {} without partial work."""
        policy, most = self.policy, ctx.local.amount
        if not isinstance(policy, Deadline) or not policy.partial:
            return {}
        limits = dict[int, int]()
        for client, work in works.items():

            def measure(amount: int, client: int = client, work: ClientWork = work) -> float:
                limited = replace(ctx, limits={client: amount})
                flops = self.meter.client_flops(limited, state, [client])[0]
                return self._seconds(client, work._replace(flops=flops))

            if self._seconds(client, work) > policy.seconds:
                limits[client] = max(1, bisect_right(range(1, most), policy.seconds, key=measure))
        return limits

    def _draw_vanished(self, ctx: Context, arrivals: Mapping[int, float]) -> dict[int, float]:
        """Return the clients that vanish, with the seconds until then; one client stays in any case."""
        if not self.devices.dropout:
            return {}
        draws = {client: rng.stream(ctx.seed, "vanish", ctx.round, client).random(2) for client in arrivals}
        gone = [client for client, (chance, _) in draws.items() if chance < self.devices.dropout]
        if len(gone) == len(draws):
            gone.remove(max(gone, key=lambda client: (draws[client][0], -client)))
        return {client: float(draws[client][1]) * arrivals[client] for client in gone}

    # after the round

    def read_round(
        self, plan: RoundPlan, works: Mapping[int, ClientWork], survey: SurveyTime, server_flops: int
    ) -> ClockReading:
        """Return the seconds and the energy of a round, and add the seconds to the total.

        Args:
            plan: of the round.
            works: of the clients whose updates count.
            survey: of the client survey.
            server_flops: operations of the server.
        """
        profiles = {client: self._profile(client) for client in works}
        arrivals = {client: profiles[client].measure_seconds(work).total for client, work in works.items()}
        last = max(arrivals, key=lambda client: (arrivals[client], -client), default=None)
        end = max(plan.until, 0.0 if last is None else arrivals[last])
        joules = survey.joules + sum(profiles[client].measure_joules(work) for client, work in works.items())
        for client, work in plan.left_out.items():
            profile, elapsed = self._profile(client), plan.vanished.get(client, end)
            done = profile.measure_seconds(work).shares_done(min(end, elapsed))
            joules += profile.measure_joules(work, done)
        begun = self.total + survey.seconds
        times = [ClientTime(client, begun, begun + arrival) for client, arrival in arrivals.items()]
        times += [
            ClientTime(client, begun, begun + min(end, plan.vanished.get(client, end)), counts=False)
            for client in plan.left_out
        ]
        speed = self.devices.server_gflops
        server = server_flops / (1e9 * speed) if speed else 0.0
        seconds = survey.seconds + end + server
        self.total += seconds
        return ClockReading(
            total=self.total,
            round=seconds,
            survey=survey.seconds,
            clients=end,
            server=server,
            idle=sum(end - arrival for arrival in arrivals.values()),
            joules=joules,
            waited_for=last if last is not None and arrivals[last] == end else None,
            left_out=select_left_out(plan.left_out),
            num_left_out=len(plan.left_out),
            shortened=len(plan.limits),
            timeline=select_latest(times),
        )

    def time_survey(self, works: Mapping[int, ClientWork]) -> SurveyTime:
        """Return the seconds and the energy of a client survey: the server waits for all answers."""
        found = [(self._profile(client), work) for client, work in works.items()]
        seconds = max((profile.measure_seconds(work).total for profile, work in found), default=0.0)
        return SurveyTime(seconds, sum(profile.measure_joules(work) for profile, work in found))

    def _profile(self, client: int) -> DeviceProfile:
        return self.devices.fleet.draw_profile(self.population.settings.seed, client)

    def _seconds(self, client: int, work: ClientWork) -> float:
        return self._profile(client).measure_seconds(work).total


@dataclass(frozen=True)
class SurveyTime:
    """The seconds and the energy of a client survey."""

    seconds: float = 0.0
    joules: float = 0.0
