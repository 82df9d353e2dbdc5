"""AsynchronousRounds: server steps in place of rounds, each with the updates that arrived since the last.

The order of events is that of simulated time (`fedsim.clock.flights`) and is known before anybody trains: the
seconds of a client follow from counted bytes and operations. Clients therefore train when their updates are
due: all clients of one server step at once, on any pool, grouped by the version of the model that they
downloaded. A version is kept as long as a client in flight has it.

The random numbers of a client's training have the address (version, client). No client has the same version
twice, because it begins anew only after a later server step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

from fedsim.base.costs import ClientTime, ClockReading, select_latest, select_left_out
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous, SemiAsynchronous, explain_waiting
from fedsim.clock.devices import Devices
from fedsim.clock.flights import EndedFlights, Flight, FlightQueue, InFlight
from fedsim.clock.profiles import ClientWork, DeviceProfile
from fedsim.core import Algorithm, ReducedUpdates, Traffic
from fedsim.engine.asynchronous.updates import GroupUpdates, combine_updates
from fedsim.engine.asynchronous.versions import ModelVersion
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.reduction import require_updates
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.round_start import StartedRound, SynchronousRounds, TrainingGroup
from fedsim.engine.round_timing import MessageMeter, RoundTiming
from fedsim.engine.server_messages import make_broadcasts
from fedsim.errors import FedsimError, SettingsError
from fedsim.training.effort import CostMeter
from fedsim.training.flops import FlopCounter


def make_rounds(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    devices: Devices | None,
    meter: CostMeter,
    resume: Checkpoint | None,
) -> SynchronousRounds | AsynchronousRounds:
    """Make the rounds of a run, as the policy of its devices has them.

    Raises:
        SettingsError: asynchronous rounds do not suit the algorithm.
    """
    if devices is not None and isinstance(devices.policy, Asynchronous):
        return AsynchronousRounds(algorithm, population, pool, devices, devices.policy, meter, resume)
    timing = RoundTiming(devices, algorithm, population, meter, resume)
    return SynchronousRounds(algorithm, population, pool, timing)


class AsynchronousRounds:
    """The rounds of a run with an asynchronous policy; a round is one server step.

    Args:
        algorithm: of the run.
        population: of the run; its cohort size is the number of clients in flight.
        pool: trains the clients.
        devices: of the run.
        policy: of the devices.
        meter: counts the FLOPs of clients.
        resume: the checkpoint from which the run goes on.

    Attributes:
        server_counter: counts nothing: a mean of models has no counted operation.

    Raises:
        SettingsError: the algorithm needs rounds in which the server waits, the buffer is larger than the
            federation, or the checkpoint is of a synchronous run.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        pool: ClientPool,
        devices: Devices,
        policy: Asynchronous,
        meter: CostMeter,
        resume: Checkpoint | None = None,
    ) -> None:
        num_clients = population.partition.num_clients
        if reason := explain_waiting(algorithm):
            raise SettingsError(f"asynchronous rounds do not suit the algorithm: {reason}")
        if (policy.updates_per_round or 0) > num_clients:
            raise SettingsError(
                f"{num_clients} clients cannot fill a buffer of {policy.updates_per_round}, "
                "because each counts at most once"
            )
        if resume is not None and resume.in_flight is None:
            raise SettingsError("the checkpoint has no clients in flight: its run was synchronous")
        self.algorithm, self.population, self.pool = algorithm, population, pool
        self.devices, self.policy, self.meter = devices, policy, meter
        self.server_counter = FlopCounter(False)
        self._messages = MessageMeter(algorithm, population)
        settings, held = population.settings, None if resume is None else resume.in_flight
        self._queue = FlightQueue(settings.cohort_size, num_clients, settings.seed, devices.dropout, held)
        self._read_until = self._queue.now
        self._ended: EndedFlights | None = None
        self._failed_in_a_row = 0
        self._versions = dict[int, ModelVersion]()
        for number, state in ({} if held is None else held.states).items():
            self._add_version(number, state)
        self._holders = Counter(flight.version for flight in self._queue.flights)

    def start(self, state: Any, number: int) -> StartedRound:
        """Let time pass until the updates of a server step are there, and start their training."""
        if self._ended is None:
            self._add_version(number, state)
            self._ended = self._let_time_pass(number)
        ended = self._ended
        started = self._start_training(number, ended)
        self._forget_versions(number, ended)
        self._ended = None
        return started

    def _let_time_pass(self, number: int) -> EndedFlights:
        """Let time pass until the next server step."""
        measure = partial(self._measure_seconds, number)
        if isinstance(self.policy, SemiAsynchronous):
            return self._queue.wait_until_deadline(number, self.policy.seconds, measure)
        return self._queue.fill_buffer(number, self.policy.updates_per_round or 1, measure)

    def start_early(self, state: Any, number: int) -> StartedRound | None:
        """Start the next round while this one is evaluated; see `SynchronousRounds.start_early`."""
        try:
            return self.start(state, number)
        except FedsimError:
            return None

    def list_in_flight(self) -> InFlight:
        """Return the clients in flight; call it before the next round starts."""
        states = {number: version.state for number, version in self._versions.items()}
        return InFlight(self._queue.now, self._queue.started, self._queue.flights, states)

    def _add_version(self, number: int, state: Any) -> None:
        self._versions[number] = ModelVersion(self.population.context(number), state, self._messages)

    def _measure_seconds(self, number: int, clients: Sequence[int]) -> list[float]:
        """Return the seconds of clients that begin with this version, and note that they have it."""
        works = self._versions[number].measure_works(self.meter, clients)
        self._holders[number] += len(clients)
        return [
            self._profile(client).measure_seconds(work).total
            for client, work in zip(clients, works, strict=True)
        ]

    def _profile(self, client: int) -> DeviceProfile:
        return self.devices.fleet.draw_profile(self.population.settings.seed, client)

    def _start_training(self, number: int, ended: EndedFlights) -> StartedRound:
        newest, members = self._versions[number], defaultdict[int, list[int]](list)
        for flight in ended.arrived:
            members[flight.version].append(flight.client)
        groups = {
            version: self._versions[version].make_group(sorted(clients))
            for version, clients in sorted(members.items())
        }
        waits = [self.pool.begin_training(*group) for group in groups.values()]
        order = tuple(flight.client for flight in ended.arrived)
        wasted, joules = self._count_vanished(ended.vanished)
        ctx = replace(newest.ctx, clock=self._queue.now)
        return StartedRound(
            ctx=ctx,
            state=newest.state,
            cohort=order,
            groups=tuple(groups.values()),
            other_traffic=wasted,
            survey_seconds=0.0,
            wait_for_clients=lambda: self._combine(newest.make_group(order), groups, waits, number),
            read_clock=partial(self._read_clock, ended, number, tuple(groups.values()), joules),
        )

    def _forget_versions(self, number: int, ended: EndedFlights) -> None:
        """Drop the versions that no client in flight has."""
        flights = [*ended.arrived, *ended.vanished]
        self._holders.subtract(flight.version for flight in flights)
        for version in {number, *(flight.version for flight in flights)}:
            if self._holders[version] == 0:
                del self._holders[version], self._versions[version]

    def _combine(
        self,
        newest: TrainingGroup,
        groups: dict[int, TrainingGroup],
        waits: Sequence[Callable[[], ReducedUpdates]],
        number: int,
    ) -> ReducedUpdates:
        """Wait for all groups, and combine their updates.

        A step whose clients all failed leaves the model as it is.

        Raises:
            CohortFailed: as many updates in a row failed as clients are in flight.
        """
        found = [
            GroupUpdates(number - version, make_broadcasts(self.algorithm, group.ctx, group.state), wait())
            for (version, group), wait in zip(groups.items(), waits, strict=True)
        ]
        present = make_broadcasts(self.algorithm, newest.ctx, newest.state)
        reduced = combine_updates(self.policy, newest.ctx, present, found, newest.clients)
        self._failed_in_a_row = 0 if reduced.clients else self._failed_in_a_row + len(reduced.failed)
        if self._failed_in_a_row >= newest.ctx.cohort_size:
            require_updates(reduced, f"{self._failed_in_a_row} updates in a row failed")
        return reduced

    def _count_vanished(self, flights: Sequence[Flight]) -> tuple[Traffic, float]:
        """Return the downloads and the energy of clients that vanished."""
        traffic, joules = Traffic(), 0.0
        for flight in flights:
            version, profile = self._versions[flight.version], self._profile(flight.client)
            [work] = version.measure_works(self.meter, [flight.client])
            done = profile.measure_seconds(work).shares_done(flight.end - flight.start)
            joules += profile.measure_joules(work, done)
            traffic += version.count_download(flight.client)
        return traffic, joules

    def _read_clock(
        self,
        ended: EndedFlights,
        number: int,
        groups: Sequence[TrainingGroup],
        joules: float,
        reduced: ReducedUpdates,
    ) -> ClockReading:
        """Return the simulated seconds and the energy of a server step."""
        sent = dict(zip(reduced.clients, reduced.client_bytes, strict=True))
        for ctx, state, clients in groups:
            finished = [client for client in clients if client in sent]
            for client, flops in zip(finished, self.meter.client_flops(ctx, state, finished), strict=True):
                down, up = sent[client]
                joules += self._profile(client).measure_joules(ClientWork(down, flops, up))
        last, ages = ended.arrived[-1], [number - flight.version for flight in ended.arrived]
        seconds, self._read_until = ended.until - self._read_until, ended.until
        has_deadline = self.policy.updates_per_round is None
        return ClockReading(
            total=ended.until,
            round=seconds,
            clients=seconds,
            idle=sum(ended.until - flight.end for flight in ended.arrived) if has_deadline else 0.0,
            joules=joules,
            waited_for=last.client if last.end == ended.until else None,
            left_out=select_left_out(flight.client for flight in ended.vanished),
            num_left_out=len(ended.vanished),
            staleness=mean(ages),
            max_staleness=max(ages),
            timeline=select_latest(
                ClientTime(flight.client, flight.start, flight.end, not flight.vanishes)
                for flight in (*ended.arrived, *ended.vanished)
            ),
        )
