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
from fedsim.core import Algorithm, Context, Reduced, Reduction, Traffic
from fedsim.core.capabilities import ClientSurvey, ServerTraining, capability, select_cohort
from fedsim.core.error_attribution import server_side
from fedsim.engine import scores as evaluation
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.initial_state import enrolled, first_state
from fedsim.engine.results import RoundResult
from fedsim.engine.scoring import Examining, Personal, Scoring, begin_scoring, examined, personal_due
from fedsim.engine.server_training import Learning, learnt
from fedsim.engine.worker import one_thread
from fedsim.errors import DataError, FedsimError
from fedsim.training.effort import Meter

if TYPE_CHECKING:
    from fedsim.engine.resume_point import Checkpoint

__all__ = [
    "Examining",
    "Learning",
    "Personal",
    "RoundResult",
    "first_state",
    "personal_due",
    "simulate",
    "stages",
]

Stage: TypeAlias = RoundResult | Examining | Learning

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
    for stage in stages(algorithm, population, pool, **options, resume=resume, device=device):
        if isinstance(stage, RoundResult):
            yield stage


def stages(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    personal: Personal = "auto",
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Stage]:
    """As `simulate`, saying besides how far the server's training and the scoring of clients' models are."""
    last = population.rounds if rounds is None else rounds
    _check(population)
    state, enrolling = (
        enrolled(algorithm, population) if resume is None else (_restored(resume, pool), Traffic())
    )
    first = resume.round if resume else 0
    training = capability(algorithm, ServerTraining)
    trains_first = training is not None and training.trains_before_evaluation
    ahead: _Begun | None = None
    meter, told = Meter(algorithm, population), False
    for number in range(first, last):
        clock = Clock()
        begun = ahead or _begin(algorithm, population, pool, state, number)
        with one_thread():
            reduced = begun.finish()
            clock.lap("train")
            told = told or _told(algorithm, begun.ctx, reduced)
            with server_side(algorithm, "aggregate"):
                state = algorithm.aggregate(begun.ctx, begun.state, reduced)
        if trains_first:
            clock.lap("server")
            state = yield from learnt(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.lap("learn")
        scoring = Scoring()
        if (number + 1) % evaluate_every == 0 or number + 1 == last:
            mine = personal_due(personal, algorithm, population, begun.ctx, number + 1 == last)
            scoring = begin_scoring(algorithm, pool, begun.ctx, state, mine)
        clock.lap("server")
        if not trains_first:
            state = yield from learnt(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.lap("learn")
        ahead = _begin_ahead(algorithm, population, pool, state, number + 1) if number + 1 < last else None
        account = _accounted(algorithm, meter, begun, state, reduced)
        clock.lap("server")
        metrics = evaluation.metrics(scoring.deployed())
        clock.lap("evaluate")
        own = yield from examined(scoring, number + 1)
        clock.lap("personal")
        yield replace(
            account,
            metrics={**metrics, **own.metrics(), **reduced.metrics},
            traffic=account.traffic + enrolling + Traffic(personal=own.bytes_down),
            tuning=meter.tuning(begun.ctx, own.clients.tolist()),
            seconds=clock.seconds(begun.asking),
            personal=own if scoring.personal else None,
        )
        enrolling = Traffic()  # asked once, and charged to the first round


def _check(population: Population) -> None:
    """Raise where there is nothing to train on."""
    if not population.partition.mean_size:
        raise DataError(
            f"none of the {population.partition.num_clients} clients holds an example",
            "raise data.limit, or have data.public and evaluation.validation take less away",
        )


def _told(algorithm: Algorithm, ctx: Context, reduced: Reduced) -> bool:
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


def _accounted(
    algorithm: Algorithm, meter: Meter, begun: _Begun, state: Any, reduced: Reduced
) -> RoundResult:
    """What is known of a round before its models are scored."""
    with server_side(algorithm, "aggregate"):
        mark = digest(state)
    with server_side(algorithm, "describe_round"):
        method = algorithm.describe_round(begun.ctx, state)
    return RoundResult(
        round=begun.ctx.round + 1,
        state=state,
        digest=mark,
        memory_digest=reduced.memory_digest,
        cohort=begun.cohort,
        failed=reduced.failed,
        traffic=reduced.traffic + begun.survey,
        cost=meter.training(begun.ctx, begun.state, reduced.clients),
        engine=reduced.engine,
        method=method,
    )


@dataclass(frozen=True)
class _Begun:
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
    survey: Traffic
    asking: float
    finish: Callable[[], Reduced]


def _begin(algorithm: Algorithm, population: Population, pool: ClientPool, state: Any, number: int) -> _Begun:
    """Choose the clients of a round, and have them begin."""
    ctx, began = population.context(number), perf_counter()
    state, survey = _ask(algorithm, ctx, state, pool)
    asking = perf_counter() - began if capability(algorithm, ClientSurvey) else 0.0
    with server_side(algorithm, "select_cohort"):
        cohort = select_cohort(algorithm, ctx, state, rng.stream(population.seed, "cohort", number))
    return _Begun(ctx, state, tuple(cohort), survey, asking, pool.train(algorithm, ctx, state, cohort))


def _begin_ahead(
    algorithm: Algorithm, population: Population, pool: ClientPool, state: Any, number: int
) -> _Begun | None:
    """Have the next round begin while this one is scored and written down, so that no worker is idle.

    It changes no result: the round begins from the same state, and the pool keeps the clients' memories as
    they are until its outcome is asked for. A round that begins with a survey waits for its turn; and what
    goes wrong in beginning comes up when it is its turn, after this round's result.
    """
    if capability(algorithm, ClientSurvey):
        return None
    try:
        return _begin(algorithm, population, pool, state, number)
    except FedsimError:
        return None


def _ask(algorithm: Algorithm, ctx: Context, state: Any, pool: ClientPool) -> tuple[Any, Traffic]:
    """The survey, where the method has one, and what it cost."""
    asking = capability(algorithm, ClientSurvey)
    if asking is None:
        return state, Traffic()
    with server_side(algorithm, "select_surveyed_clients"):
        clients = asking.select_surveyed_clients(ctx, state)
    if not len(clients):
        return state, Traffic()
    survey = pool.measure(algorithm, ctx, state, clients)
    with server_side(algorithm, "apply_survey"):
        return asking.apply_survey(ctx, state, survey.losses), survey.traffic


def _restored(checkpoint: Checkpoint, pool: ClientPool) -> Any:
    """The server state of a checkpoint; the clients' memories go into the pool."""
    for memories in checkpoint.memories:
        pool.restore(memories)
    return checkpoint.state
