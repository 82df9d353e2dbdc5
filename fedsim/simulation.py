"""The round loop, shared by every algorithm and every pool.

One round: `survey` (where the method asks first) -> `cohort` (seeded by the round) -> the pool trains it,
block by block -> `aggregate` -> the deployed models are scored, and where it is due the clients' own, while
the server trains what is its own (`learn`) and then the next round's clients begin. All of it is visible in
`stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from . import evaluation, rng
from .causes import server_side
from .core import (
    Algorithm,
    ClientPool,
    Context,
    Examination,
    PersonalScores,
    Reduced,
    Score,
    Traffic,
)
from .digest import digest
from .effort import Meter
from .errors import FedsimError
from .examiner import tunes
from .learning import TELL_SECONDS, Learning, learnt
from .population import Population
from .results import RoundResult
from .worker import one_thread

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

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

Personal: TypeAlias = Literal["auto", "never", "last", "always"]


@dataclass(frozen=True)
class Examining:
    """How far the scoring of the clients' own models is.

    Attributes:
        round: after which they are scored, from 1.
        done: how many clients are.
    """

    round: int
    done: int


Stage: TypeAlias = RoundResult | Examining | Learning


def simulate(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    personal: Personal = "auto",
    resume: Checkpoint | None = None,
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

    Yields:
        One result per round, as soon as it is finished.

    Raises:
        ClientFailed, CohortFailed: if clients raised, as the pool's fault policy has it.
        MethodFailed: if the algorithm's code on the server raised.
        OutOfMemory: if memory ran out, in either.
    """
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every, "personal": personal}
    for stage in stages(algorithm, population, pool, **options, resume=resume):
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
) -> Iterator[Stage]:
    """As `simulate`, saying besides how far the server's training and the scoring of clients' models are."""
    last = population.rounds if rounds is None else rounds
    state = first_state(algorithm, population) if resume is None else _restored(resume, pool)
    first = resume.round if resume else 0
    ahead: _Begun | None = None
    meter = Meter(algorithm, population)
    for number in range(first, last):
        began = perf_counter()
        begun = ahead or _begin(algorithm, population, pool, state, number)
        with one_thread():
            reduced = begun.finish()
            trained = perf_counter()
            with server_side(algorithm, "aggregate"):
                state = algorithm.aggregate(begun.ctx, begun.state, reduced)
        scoring = _Scoring()
        if (number + 1) % evaluate_every == 0 or number + 1 == last:
            mine = personal_due(personal, algorithm, population, begun.ctx, number + 1 == last)
            scoring = _begin_scoring(algorithm, pool, begun.ctx, state, mine)
        learning = perf_counter()
        state = yield from learnt(algorithm, begun.ctx, state, reduced)
        learning = perf_counter() - learning
        with server_side(algorithm, "aggregate"):
            mark = digest(state)
        with server_side(algorithm, "describe"):
            method = algorithm.describe(begun.ctx, state)
        ahead = _begin_ahead(algorithm, population, pool, state, number + 1) if number + 1 < last else None
        cost, served = meter.training(begun.ctx, begun.state, reduced.clients), perf_counter()
        metrics, examined, examining = yield from _scored(scoring, number + 1)
        ended = perf_counter()
        yield RoundResult(
            round=number + 1,
            state=state,
            digest=mark,
            memory_digest=reduced.memory_digest,
            cohort=begun.cohort,
            failed=reduced.failed,
            metrics={**metrics, **reduced.metrics},
            traffic=reduced.traffic + begun.survey + Traffic(personal=examined.bytes_down),
            cost=cost,
            tuning=meter.tuning(begun.ctx, examined.clients.tolist()),
            seconds={
                "total": ended - began,
                "survey": begun.asking,
                "train": trained - began - begun.asking,
                "server": served - trained - learning,
                "learn": learning,
                "evaluate": ended - served - examining,
                "personal": examining,
            },
            engine=reduced.engine,
            method=method,
            personal=examined if scoring.personal else None,
        )


def personal_due(
    policy: Personal, algorithm: Algorithm, population: Population, ctx: Context, last: bool
) -> bool:
    """Whether the clients' own models are scored after a round after which models are scored.

    Args:
        policy: "never", "last", "always", or "auto": where clients have tests of their own, always, but after
            the last round only where models are fine-tuned for it; else after the last round, on the whole
            test set, where the method has nothing else to be scored.
        algorithm: the method.
        population: the federation.
        ctx: the round.
        last: whether it is the last.
    """
    if policy != "auto":
        return policy == "always" or (policy == "last" and last)
    if population.tests is None:
        return last and not algorithm.deploys
    return last or not tunes(algorithm, ctx)


@dataclass(frozen=True)
class _Scoring:
    """Models that are being scored after a round: the deployed ones, and the clients' own."""

    deployed: Callable[[], Mapping[str, Score]] = dict
    personal: Examination | None = None


def _begin_scoring(
    algorithm: Algorithm, pool: ClientPool, ctx: Context, state: Any, personal: bool
) -> _Scoring:
    scores = pool.evaluate(algorithm, ctx, state)
    return _Scoring(scores, pool.evaluate_personal(algorithm, ctx, state) if personal else None)


def _scored(
    scoring: _Scoring, round: int
) -> Generator[Stage, None, tuple[dict[str, float], PersonalScores, float]]:
    """The figures for the record, the clients' own scores, and how many seconds these took besides."""
    metrics = evaluation.metrics(scoring.deployed())
    if scoring.personal is None:
        return metrics, PersonalScores(), 0.0
    began = told = perf_counter()
    while True:
        try:
            done = next(scoring.personal)
        except StopIteration as end:
            scores: PersonalScores = end.value
            return {**metrics, **scores.metrics()}, scores, perf_counter() - began
        if perf_counter() - told > TELL_SECONDS:
            told = perf_counter()
            yield Examining(round, done)


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
    asking = perf_counter() - began if algorithm.has("survey") else 0.0
    with server_side(algorithm, "cohort"):
        cohort = algorithm.cohort(ctx, state, rng.stream(population.seed, "cohort", number))
    return _Begun(ctx, state, tuple(cohort), survey, asking, pool.train(algorithm, ctx, state, cohort))


def _begin_ahead(
    algorithm: Algorithm, population: Population, pool: ClientPool, state: Any, number: int
) -> _Begun | None:
    """Have the next round begin while this one is scored and written down, so that no worker is idle.

    It changes no result: the round begins from the same state, and the pool keeps the clients' memories as
    they are until its outcome is asked for. A round that begins with a survey waits for its turn; and what
    goes wrong in beginning comes up when it is its turn, after this round's result.
    """
    if algorithm.has("survey"):
        return None
    try:
        return _begin(algorithm, population, pool, state, number)
    except FedsimError:
        return None


def _ask(algorithm: Algorithm, ctx: Context, state: Any, pool: ClientPool) -> tuple[Any, Traffic]:
    """The survey, where the method has one, and what it cost."""
    if not algorithm.has("survey"):
        return state, Traffic()
    with server_side(algorithm, "survey"):
        clients = algorithm.survey(ctx, state)
    if not len(clients):
        return state, Traffic()
    survey = pool.measure(algorithm, ctx, state, clients)
    with server_side(algorithm, "surveyed"):
        return algorithm.surveyed(ctx, state, survey.losses), survey.traffic


def first_state(algorithm: Algorithm, population: Population) -> Any:
    """The server state before round 1."""
    with one_thread(), server_side(algorithm, "init"):
        return algorithm.init(population.context(0))


def _restored(checkpoint: Checkpoint, pool: ClientPool) -> Any:
    """The server state of a checkpoint; the clients' memories go into the pool."""
    for memories in checkpoint.memories:
        pool.restore(memories)
    return checkpoint.state
