"""SynchronousRounds: survey the clients, select the cohort and start its training, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from time import perf_counter
from typing import Any, NamedTuple

from fedsim.base import rng
from fedsim.base.costs import ClockReading, Cost
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, ReducedUpdates, Traffic
from fedsim.core.capabilities import ClientSurvey, capability
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.reduction import require_updates
from fedsim.engine.round_timing import RoundTiming, TimedRound
from fedsim.errors import FedsimError
from fedsim.training.effort import CostMeter


class TrainingGroup(NamedTuple):
    """Clients that begin with the same model.

    Attributes:
        ctx: the round in which the server had this model.
        state: the server state at the start of that round.
        clients: in ascending order.
    """

    ctx: Context
    state: Any
    clients: tuple[int, ...]


@dataclass(frozen=True)
class StartedRound:
    """A round whose clients have started training.

    Attributes:
        ctx: the round's context, with the limits of its clients.
        state: the server state at the start of the round.
        cohort: the round's clients.
        groups: the clients by the model with which they begin; one group in a synchronous round.
        other_traffic: traffic of the client survey, and to clients that do not count.
        survey_seconds: wall-clock seconds of the client survey.
        wait_for_clients: waits for the client updates, reduced to sums and means.
        read_clock: returns the simulated seconds of the round, from these updates; None without a clock.
    """

    ctx: Context
    state: Any
    cohort: tuple[int, ...]
    groups: tuple[TrainingGroup, ...]
    other_traffic: Traffic
    survey_seconds: float
    wait_for_clients: Callable[[], ReducedUpdates]
    read_clock: Callable[[ReducedUpdates], ClockReading | None]

    def count_cost(self, meter: CostMeter, reduced: ReducedUpdates) -> Cost:
        """Return the cost of the clients that finished."""
        finished = set(reduced.clients)
        costs = (
            meter.training_cost(ctx, state, [client for client in clients if client in finished])
            for ctx, state, clients in self.groups
        )
        return sum(costs, Cost())


class SynchronousRounds:
    """The rounds of a run whose server waits for its cohort.

    Args:
        algorithm: of the run.
        population: of the run.
        pool: trains the clients.
        timing: the simulated clock.

    Attributes:
        server_counter: counts the operations of the server inside its `with` blocks.
    """

    def __init__(
        self, algorithm: Algorithm, population: Population, pool: ClientPool, timing: RoundTiming
    ) -> None:
        self.algorithm, self.population, self.pool, self.timing = algorithm, population, pool, timing
        self.server_counter = timing.server_counter

    def start(self, state: Any, number: int) -> StartedRound:
        """Run the client survey, select the cohort and start its training."""
        algorithm, timing = self.algorithm, self.timing
        ctx, began = timing.add_time(self.population.context(number)), perf_counter()
        asked_ctx = timing.asked_context(ctx)
        surveyed = _select_surveyed(algorithm, asked_ctx, state)
        survey = timing.time_survey(asked_ctx, state, surveyed)
        state, survey_traffic = _run_survey(algorithm, asked_ctx, state, self.pool, surveyed)
        survey_seconds = perf_counter() - began if capability(algorithm, ClientSurvey) else 0.0
        with attribute_server_errors(algorithm, "select_cohort"):
            asked = timing.select_asked(ctx, state, rng.stream(ctx.seed, "cohort", number))
            _check_cohort(ctx, asked)
        plan = timing.plan_round(ctx, state, asked)
        training_ctx = replace(ctx, limits=plan.limits) if plan.limits else ctx
        wait = self.pool.begin_training(training_ctx, state, plan.cohort)
        failed = f"all {len(plan.cohort)} clients of round {number + 1} failed"
        return StartedRound(
            ctx=training_ctx,
            state=state,
            cohort=plan.cohort,
            groups=(TrainingGroup(training_ctx, state, plan.cohort),),
            other_traffic=survey_traffic + plan.wasted,
            survey_seconds=survey_seconds,
            wait_for_clients=lambda: replace(
                require_updates(wait(), failed), left_out=len(asked) - len(plan.cohort)
            ),
            read_clock=partial(timing.read_round, TimedRound(training_ctx, state, plan, survey)),
        )

    def start_early(self, state: Any, number: int) -> StartedRound | None:
        """Start the next round while this one is evaluated and recorded, so that no worker is idle.

        The early start changes no result: the next round starts from the same server state, and the pool
        changes no client state before the caller asks for the outcome.

        Returns:
            The started round; None if it must start later. A round with a client survey starts in its own
            turn. A round whose start fails is started again in its own turn, and raises there, after this
            round's result.
        """
        if capability(self.algorithm, ClientSurvey):
            return None
        try:
            return self.start(state, number)
        except FedsimError:
            return None

    def list_in_flight(self) -> None:
        """None: between two rounds nobody trains."""
        return


def _select_surveyed(algorithm: Algorithm, ctx: Context, state: Any) -> Sequence[int]:
    """Return the clients of the survey; () without a survey."""
    surveying = capability(algorithm, ClientSurvey)
    if surveying is None:
        return ()
    with attribute_server_errors(algorithm, "select_surveyed_clients"):
        return surveying.select_surveyed_clients(ctx, state)


def _run_survey(
    algorithm: Algorithm, ctx: Context, state: Any, pool: ClientPool, clients: Sequence[int]
) -> tuple[Any, Traffic]:
    """Run the survey of these clients, if there are any; return the new server state and the traffic."""
    surveying = capability(algorithm, ClientSurvey)
    if surveying is None or not len(clients):
        return state, Traffic()
    survey = pool.measure_losses(ctx, state, clients)
    with attribute_server_errors(algorithm, "apply_survey"):
        return surveying.apply_survey(ctx, state, survey.losses), survey.traffic


def _check_cohort(ctx: Context, cohort: Any) -> None:
    """Raise an error unless a cohort is a sequence of different numbers of clients."""
    if not isinstance(cohort, Sequence) or isinstance(cohort, str):
        raise TypeError(f"the cohort is {cohort!r}; return a list of client numbers")
    wrong = [client for client in cohort if not isinstance(client, Integral)]
    if wrong:
        raise TypeError(f"the cohort has {wrong[0]!r}; client numbers are whole numbers")
    wrong = [client for client in cohort if not 0 <= client < ctx.num_clients]
    if wrong:
        raise ValueError(f"the cohort has client {wrong[0]}; the clients are 0 to {ctx.num_clients - 1}")
    if len(set(cohort)) < len(cohort):
        raise ValueError(f"the cohort {list(cohort)} has a client twice")
