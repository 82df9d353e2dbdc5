"""Start a round: survey the clients, select the cohort and start its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from fedsim.base import rng
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, ReducedUpdates, Traffic
from fedsim.core.capabilities import ClientSurvey, capability
from fedsim.core.error_attribution import attribute_server_errors
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.round_timing import RoundTiming, TimedRound
from fedsim.errors import FedsimError


@dataclass(frozen=True)
class StartedRound:
    """A round whose clients have started training.

    Attributes:
        ctx: the round's context.
        state: the server state at the start of the round.
        cohort: the round's clients.
        survey_traffic: traffic of the client survey before the round.
        survey_seconds: wall-clock seconds of the client survey.
        timed: the round as the simulated clock sees it.
    """

    ctx: Context
    state: Any
    cohort: tuple[int, ...]
    survey_traffic: Traffic
    survey_seconds: float
    wait_for_clients: Callable[[], ReducedUpdates]
    timed: TimedRound


def start_round(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    state: Any,
    number: int,
    timing: RoundTiming,
) -> StartedRound:
    """Run the client survey, select the cohort and start its training."""
    ctx, began = timing.add_time(population.context(number)), perf_counter()
    asked_ctx = timing.asked_context(ctx)
    surveyed = _select_surveyed(algorithm, asked_ctx, state)
    survey = timing.time_survey(asked_ctx, state, surveyed)
    state, survey_traffic = _run_survey(algorithm, asked_ctx, state, pool, surveyed)
    survey_seconds = perf_counter() - began if capability(algorithm, ClientSurvey) else 0.0
    with attribute_server_errors(algorithm, "select_cohort"):
        asked = timing.select_asked(ctx, state, rng.stream(population.settings.seed, "cohort", number))
    plan = timing.plan_round(ctx, state, asked)
    training_ctx = replace(ctx, limits=plan.limits) if plan.limits else ctx
    return StartedRound(
        ctx=ctx,
        state=state,
        cohort=plan.cohort,
        survey_traffic=survey_traffic,
        survey_seconds=survey_seconds,
        wait_for_clients=pool.begin_training(algorithm, training_ctx, state, plan.cohort),
        timed=TimedRound(training_ctx, state, plan, survey),
    )


def start_next_round(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    state: Any,
    number: int,
    timing: RoundTiming,
) -> StartedRound | None:
    """Start the next round while this one is evaluated and recorded, so that no worker is idle.

    The early start changes no result: the next round starts from the same server state, and the pool
    changes no client state before the caller asks for the outcome.

    Returns:
        The started round; None if it must start later. A round with a client survey starts in its own turn.
        A round whose start fails is started again in its own turn, and raises there, after this round's
        result.
    """
    if capability(algorithm, ClientSurvey):
        return None
    try:
        return start_round(algorithm, population, pool, state, number, timing)
    except FedsimError:
        return None


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
    survey = pool.measure_losses(algorithm, ctx, state, clients)
    with attribute_server_errors(algorithm, "apply_survey"):
        return surveying.apply_survey(ctx, state, survey.losses), survey.traffic
