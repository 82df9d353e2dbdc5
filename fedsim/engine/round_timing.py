"""The simulated clock in the round loop: what it must know of a round's messages and of the client survey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsim.base.costs import ClockReading
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.clock.devices import Devices
from fedsim.clock.profiles import ClientWork
from fedsim.clock.simulated_clock import MessageSizes, RoundPlan, SimulatedClock, SurveyTime
from fedsim.core import Algorithm, Context, ReducedUpdates, Traffic
from fedsim.core.capabilities import select_cohort
from fedsim.data.dataset import Indices
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.server_messages import (
    count_survey_traffic,
    make_broadcasts,
    make_instructions,
    measure_bytes_down,
    select_survey_models,
)
from fedsim.engine.worker import Worker
from fedsim.errors import ClientFailed, MethodFailed
from fedsim.training.effort import CostMeter
from fedsim.training.flops import FlopCounter


@dataclass(frozen=True)
class NoExamples:
    """A partition in which no client holds an example; contexts keep the mean of the real one."""

    num_clients: int
    mean_size: float

    def size(self, client: int) -> int:
        """0."""
        return 0

    def client_positions(self, client: int) -> Indices:
        """No positions."""
        return np.empty(0, np.int64)


class MessageMeter:
    """Measures the messages of a round before it runs.

    The size of an upload is that of a client without examples, which this class runs: a method declares the
    same keys and shapes for all clients. Only uploads whose size depends on the training differ, such as
    those of a method that sends the largest entries.

    Args:
        algorithm: of the run.
        population: of the run.

    Raises:
        MethodFailed: every method, if the client without examples raises an error.
    """

    def __init__(self, algorithm: Algorithm, population: Population) -> None:
        held = population.partition
        empty: Any = NoExamples(held.num_clients, held.mean_size)
        # This worker has a CPU, which cannot train in every precision of a GPU; no size depends on precision.
        local = replace(population.settings.local, precision="float32")
        settings = replace(population.settings, local=local)
        self.algorithm = algorithm
        self.worker = Worker(algorithm, replace(population, partition=empty, settings=settings))

    def measure(self, ctx: Context, state: Any, clients: Sequence[int]) -> MessageSizes:
        """Return the sizes of the messages to and from these clients."""
        algorithm = self.algorithm
        broadcasts = make_broadcasts(algorithm, ctx, state)
        instructions = make_instructions(algorithm, ctx, state, clients)
        down = measure_bytes_down(algorithm, ctx, broadcasts, instructions)
        first = {client % len(ctx.nets): client for client in reversed(clients)}
        up = {
            architecture: self._measure_upload(ctx, client, broadcasts, instructions)
            for architecture, client in first.items()
        }
        return MessageSizes(
            {client: down.sum_payloads([client]) for client in clients},
            {client: up[client % len(ctx.nets)] for client in clients},
        )

    def _measure_upload(
        self, ctx: Context, client: int, broadcasts: Mapping[str, Tree], instructions: Mapping[int, Tree]
    ) -> int:
        """Return the bytes of the upload of a client without examples, in the place of this one."""
        try:
            result, _ = self.worker.train_span(ctx.round, 0, [(client,)], broadcasts, instructions, {})
        except ClientFailed as error:
            # No client of the run failed, so the error names none, and the fault policy does not apply.
            cause = f"the upload of a client without examples could not be measured: {error.cause}"
            name = type(self.algorithm).__name__
            raise MethodFailed(name, "the size probe", cause, error.trace) from error
        return result.bytes_up.total()


class TimedRound(NamedTuple):
    """A round as the simulated clock sees it.

    Attributes:
        ctx: the round, with the limits of the plan.
        state: the server state at its start.
        plan: whose updates count.
        survey: simulated time of the client survey.
    """

    ctx: Context
    state: Any
    plan: RoundPlan
    survey: SurveyTime


class RoundTiming:
    """The simulated clock of a run, with all that it measures; without devices it does nothing.

    Args:
        devices: of the run; None for no clock.
        algorithm: of the run.
        population: of the run.
        meter: counts the FLOPs of clients.
        resume: the checkpoint from which the run goes on; the last record has the simulated seconds so far.

    Attributes:
        server_counter: counts the operations of the server inside its `with` blocks.
    """

    def __init__(
        self,
        devices: Devices | None,
        algorithm: Algorithm,
        population: Population,
        meter: CostMeter,
        resume: Checkpoint | None = None,
    ) -> None:
        self.algorithm, self.population, self.meter = algorithm, population, meter
        self.clock: SimulatedClock | None = None
        if devices is not None:
            self.clock = SimulatedClock(devices, population, meter, _find_total(resume))
        self.server_counter = FlopCounter(devices is not None and devices.server_gflops is not None)

    @cached_property
    def _messages(self) -> MessageMeter:
        return MessageMeter(self.algorithm, self.population)

    def add_time(self, ctx: Context) -> Context:
        """Return the round with the simulated seconds at its start."""
        return ctx if self.clock is None else replace(ctx, clock=self.clock.total)

    def asked_context(self, ctx: Context) -> Context:
        """Return the round with the number of clients that the server asks as its cohort size."""
        return ctx if self.clock is None else self.clock.asked_context(ctx)

    def select_asked(self, ctx: Context, state: Any, stream: np.random.Generator) -> Sequence[int]:
        """Select the clients that the server asks: as the algorithm does, or from a tier."""
        found = None if self.clock is None else self.clock.select_from_tier(ctx, stream)
        if found is not None:
            return found
        return select_cohort(self.algorithm, self.asked_context(ctx), state, stream)

    def plan_round(self, ctx: Context, state: Any, asked: Sequence[int]) -> RoundPlan:
        """Decide whose updates count, of the clients that the server asks."""
        if self.clock is None or not self.clock.needs_sizes:
            return RoundPlan(tuple(asked))
        return self.clock.plan_round(ctx, state, asked, self._messages.measure(ctx, state, asked))

    def time_survey(self, ctx: Context, state: Any, clients: Sequence[int]) -> SurveyTime:
        """Return the simulated time of a survey: each client makes one pass over its training examples."""
        if self.clock is None or not len(clients):
            return SurveyTime()
        models, sizes = select_survey_models(self.algorithm, ctx, state), dict[int, Traffic]()
        works = dict[int, ClientWork]()
        for client in clients:
            architecture = client % len(ctx.nets)
            if architecture not in sizes:
                sizes[architecture] = count_survey_traffic(self.algorithm, ctx, state, models, [client])
            flops, traffic = self.meter.survey_flops(ctx, client), sizes[architecture]
            works[client] = ClientWork(traffic.down, flops, traffic.up)
        return self.clock.time_survey(works)

    def read_round(self, timed: TimedRound, reduced: ReducedUpdates) -> ClockReading | None:
        """Return the simulated seconds of a round, and move the clock on; None without a clock."""
        if self.clock is None:
            return None
        flops = self.meter.client_flops(timed.ctx, timed.state, reduced.clients)
        works = {
            client: ClientWork(down, each, up)
            for client, each, (down, up) in zip(reduced.clients, flops, reduced.client_bytes, strict=True)
        }
        return self.clock.read_round(timed.plan, works, timed.survey, self.server_counter.take_total())


def _find_total(resume: Checkpoint | None) -> float:
    """Return the simulated seconds before the first round of this call, from the last record with a clock."""
    total = 0.0
    for record in () if resume is None else resume.records:
        if "clock" in record:
            total = record["clock"]["total"]
    return total
