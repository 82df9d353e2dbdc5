"""The round loop, shared by every algorithm and every pool.

One round: `survey` (where the method asks first) -> `cohort` (seeded by the round) -> the pool trains it,
block by block -> `aggregate` -> the deployed models are scored, and where it is due the clients' own, while
the server trains what is its own (`learn`) and then the next round's clients begin. All of it is visible in
`stages`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fedsim.base import rng
from fedsim.base.clock import Clock
from fedsim.base.digest import digest
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, ReducedUpdates, Reduction, Traffic
from fedsim.core.capabilities import ClientSurvey, ServerTraining, capability, select_cohort
from fedsim.core.error_attribution import attribute_server_errors
from fedsim.engine import scores as evaluation
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.initial_state import make_initial_state, make_state_and_traffic
from fedsim.engine.results import RoundResult
from fedsim.engine.scoring import (
    PendingScores,
    Personal,
    PersonalEvaluationProgress,
    begin_scoring,
    is_personal_evaluation_due,
    wait_for_personal_scores,
)
from fedsim.engine.server_training import ServerTrainingProgress, train_server
from fedsim.engine.worker import one_thread
from fedsim.errors import DataError, FedsimError
from fedsim.training.effort import CostMeter

if TYPE_CHECKING:
    from fedsim.engine.resume_point import Checkpoint

__all__ = [
    "Personal",
    "PersonalEvaluationProgress",
    "RoundResult",
    "ServerTrainingProgress",
    "is_personal_evaluation_due",
    "make_initial_state",
    "simulate",
    "simulate_with_progress",
]

RoundEvent: TypeAlias = RoundResult | PersonalEvaluationProgress | ServerTrainingProgress

_LOG = logging.getLogger(__name__)


def simulate(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    personal: Personal = "auto",
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RoundResult]:
    """Run a federation; stop iterating to stop the run.

    Args:
        algorithm: the method.
        population: who takes part.
        pool: where the clients run; the caller closes it.
        rounds: how many to run, by default `population.rounds`.
        evaluate_every: score the deployed models after every so many rounds, and after the last.
        personal: after which of these rounds the clients' own models are scored; see `personal_due`.
        resume: go on from here, with the round after; the pool must be new.
        device: where the server trains what is its own.

    Yields:
        One result per round, as soon as it is finished.

    Raises:
        ClientFailed, CohortFailed: if clients raised, as the pool's fault policy has it.
        MethodFailed: if the algorithm's code on the server raised.
        OutOfMemory: if memory ran out, in either.
        DataError: if no client at all holds an example. A round of clients that hold none leaves the models
            as they are.
    """
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every, "personal": personal}
    for stage in simulate_with_progress(algorithm, population, pool, **options, resume=resume, device=device):
        if isinstance(stage, RoundResult):
            yield stage


def simulate_with_progress(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    personal: Personal = "auto",
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RoundEvent]:
    """As `simulate`, saying besides how far the server's training and the scoring of clients' models are."""
    last = population.rounds if rounds is None else rounds
    _check_examples(population)
    state, enrolling = (
        make_state_and_traffic(algorithm, population)
        if resume is None
        else (_restore_checkpoint(resume, pool), Traffic())
    )
    first = resume.round if resume else 0
    training = capability(algorithm, ServerTraining)
    trains_first = training is not None and training.trains_before_evaluation
    ahead: _RunningRound | None = None
    meter, told = CostMeter(algorithm, population), False
    for number in range(first, last):
        clock = Clock()
        begun = ahead or _begin_round(algorithm, population, pool, state, number)
        with one_thread():
            reduced = begun.wait_for_clients()
            clock.end_part("train")
            told = told or _warn_if_no_mean(algorithm, begun.ctx, reduced)
            with attribute_server_errors(algorithm, "aggregate"):
                state = algorithm.aggregate(begun.ctx, begun.state, reduced)
        if trains_first:
            clock.end_part("server")
            state = yield from train_server(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.end_part("learn")
        scoring = PendingScores()
        if (number + 1) % evaluate_every == 0 or number + 1 == last:
            mine = is_personal_evaluation_due(personal, algorithm, population, begun.ctx, number + 1 == last)
            scoring = begin_scoring(algorithm, pool, begun.ctx, state, mine)
        clock.end_part("server")
        if not trains_first:
            state = yield from train_server(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.end_part("learn")
        ahead = (
            _begin_next_round(algorithm, population, pool, state, number + 1) if number + 1 < last else None
        )
        account = _make_round_result(algorithm, meter, begun, state, reduced)
        clock.end_part("server")
        metrics = evaluation.scores_to_metrics(scoring.deployed())
        clock.end_part("evaluate")
        own = yield from wait_for_personal_scores(scoring, number + 1)
        clock.end_part("personal")
        yield replace(
            account,
            metrics={**metrics, **own.metrics(), **reduced.metrics},
            traffic=account.traffic + enrolling + Traffic(personal=own.bytes_down),
            tuning=meter.tuning_cost(begun.ctx, own.clients.tolist()),
            seconds=clock.seconds(begun.survey_seconds),
            personal=own if scoring.personal else None,
        )
        enrolling = Traffic()  # asked once, and charged to the first round


def _check_examples(population: Population) -> None:
    """Raise where there is nothing to train on."""
    if not population.partition.mean_size:
        raise DataError(
            f"none of the {population.partition.num_clients} clients holds an example",
            "raise data.limit, or have data.public and evaluation.validation take less away",
        )


def _warn_if_no_mean(algorithm: Algorithm, ctx: Context, reduced: ReducedUpdates) -> bool:
    """Whether there is no mean in this round, which the log is told then."""
    means = {Reduction.MEAN, Reduction.OVERALL_MEAN}.intersection(algorithm.uploads.values())
    if not means or sum(reduced.weights) > 0:
        return False
    _LOG.warning(
        "the weights of the clients of round %d sum to 0, so that their models have no mean and the server's "
        "stay as they are, as in later rounds like it; data.partition.min_size: 1 gives everybody an example",
        ctx.round + 1,
    )
    return True


def _make_round_result(
    algorithm: Algorithm, meter: CostMeter, begun: _RunningRound, state: Any, reduced: ReducedUpdates
) -> RoundResult:
    """What is known of a round before its models are scored."""
    with attribute_server_errors(algorithm, "aggregate"):
        mark = digest(state)
    with attribute_server_errors(algorithm, "describe_round"):
        method = algorithm.describe_round(begun.ctx, state)
    return RoundResult(
        round=begun.ctx.round + 1,
        state=state,
        digest=mark,
        memory_digest=reduced.memory_digest,
        cohort=begun.cohort,
        failed=reduced.failed,
        traffic=reduced.traffic + begun.survey_traffic,
        cost=meter.training_cost(begun.ctx, begun.state, reduced.clients),
        engine=reduced.engine,
        method=method,
    )


@dataclass(frozen=True)
class _RunningRound:
    """A round whose clients are at work, or are about to be.

    Attributes:
        ctx: the round.
        state: the server state that it began with.
        cohort: its clients.
        survey: what the survey before it cost.
        asking: seconds that it took.
        finish: waits for the clients and gives the outcome.
    """

    ctx: Context
    state: Any
    cohort: tuple[int, ...]
    survey_traffic: Traffic
    survey_seconds: float
    wait_for_clients: Callable[[], ReducedUpdates]


def _begin_round(
    algorithm: Algorithm, population: Population, pool: ClientPool, state: Any, number: int
) -> _RunningRound:
    """Choose the clients of a round, and have them begin."""
    ctx, began = population.context(number), perf_counter()
    state, survey = _run_survey(algorithm, ctx, state, pool)
    asking = perf_counter() - began if capability(algorithm, ClientSurvey) else 0.0
    with attribute_server_errors(algorithm, "select_cohort"):
        cohort = select_cohort(algorithm, ctx, state, rng.stream(population.seed, "cohort", number))
    return _RunningRound(
        ctx, state, tuple(cohort), survey, asking, pool.begin_training(algorithm, ctx, state, cohort)
    )


def _begin_next_round(
    algorithm: Algorithm, population: Population, pool: ClientPool, state: Any, number: int
) -> _RunningRound | None:
    """Have the next round begin while this one is scored and written down, so that no worker is idle.

    It changes no result: the round begins from the same state, and the pool keeps the clients' memories as
    they are until its outcome is asked for. A round that begins with a survey waits for its turn; and what
    goes wrong in beginning comes up when it is its turn, after this round's result.
    """
    if capability(algorithm, ClientSurvey):
        return None
    try:
        return _begin_round(algorithm, population, pool, state, number)
    except FedsimError:
        return None


def _run_survey(algorithm: Algorithm, ctx: Context, state: Any, pool: ClientPool) -> tuple[Any, Traffic]:
    """The survey, where the method has one, and what it cost."""
    asking = capability(algorithm, ClientSurvey)
    if asking is None:
        return state, Traffic()
    with attribute_server_errors(algorithm, "select_surveyed_clients"):
        clients = asking.select_surveyed_clients(ctx, state)
    if not len(clients):
        return state, Traffic()
    survey = pool.measure_losses(algorithm, ctx, state, clients)
    with attribute_server_errors(algorithm, "apply_survey"):
        return asking.apply_survey(ctx, state, survey.losses), survey.traffic


def _restore_checkpoint(checkpoint: Checkpoint, pool: ClientPool) -> Any:
    """The server state of a checkpoint; the clients' memories go into the pool."""
    for client_states in checkpoint.client_states:
        pool.restore_client_states(client_states)
    return checkpoint.state
