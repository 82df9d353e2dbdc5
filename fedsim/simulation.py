"""The round loop, shared by every algorithm and every pool.

One round: `survey` (where the method asks first) -> `cohort` (seeded by the round) -> the pool trains it,
block by block -> `aggregate` -> the deployed models are scored, while the next round's clients begin. All of
it is visible in `simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from . import evaluation, rng
from .causes import server_side
from .core import Algorithm, ClientPool, Context, Reduced, Traffic
from .digest import digest
from .errors import FedsimError
from .population import Population
from .worker import one_thread

if TYPE_CHECKING:
    from .checkpoint import Checkpoint


@dataclass(frozen=True)
class RoundResult:
    """One finished round.

    Attributes:
        round: how many rounds are finished now, from 1.
        state: the server state after it; None once it has crossed a process boundary.
        digest: of that state.
        memory_digest: of what all clients keep; None unless the algorithm is stateful.
        cohort: the clients that took part.
        failed: those of them whose work was left out.
        metrics: scores and the cohort's averages; `train_loss` is the mean local loss.
        traffic: simulated bytes.
        seconds: wall clock by phase: total, survey, train, server, evaluate. They add up over a run: clients
            that began while the round before was scored had those seconds for nothing.
        engine: how the pool did it.
        method: what the method decided.
    """

    round: int
    state: Any
    digest: str
    cohort: tuple[int, ...]
    memory_digest: str | None = None
    failed: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: Mapping[str, float] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The round as plain data, as it stands in stores and files."""
        return {
            "round": self.round,
            "digest": self.digest,
            "memory_digest": self.memory_digest,
            "cohort": len(self.cohort),
            "failed": list(self.failed),
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            "bytes": {
                "down": self.traffic.down,
                "up": self.traffic.up,
                "by_payload": dict(self.traffic.by_payload),
            },
            "metrics": dict(self.metrics),
            "engine": dict(self.engine),
            "method": dict(self.method),
        }


def simulate(
    algorithm: Algorithm,
    population: Population,
    pool: ClientPool,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    resume: Checkpoint | None = None,
) -> Iterator[RoundResult]:
    """Run a federation; stop iterating to stop the run.

    Args:
        algorithm: the method.
        population: who takes part.
        pool: where the clients run; the caller closes it.
        rounds: how many to run, by default `population.rounds`.
        evaluate_every: score the deployed models after every so many rounds, and after the last.
        resume: go on from here, with the round after; the pool must be new.

    Yields:
        One result per round, as soon as it is finished.

    Raises:
        ClientFailed, CohortFailed: if clients raised, as the pool's fault policy has it.
        MethodFailed: if the algorithm's code on the server raised.
        OutOfMemory: if memory ran out, in either.
    """
    last = population.rounds if rounds is None else rounds
    state = first_state(algorithm, population) if resume is None else _restored(resume, pool)
    first = resume.round if resume else 0
    ahead: _Begun | None = None
    for number in range(first, last):
        began = perf_counter()
        begun = ahead or _begin(algorithm, population, pool, state, number)
        with one_thread():
            reduced = begun.finish()
            trained = perf_counter()
            with server_side(algorithm, "aggregate"):
                state = algorithm.aggregate(begun.ctx, begun.state, reduced)
        metrics = dict(reduced.metrics)
        due = (number + 1) % evaluate_every == 0 or number + 1 == last
        scores = pool.evaluate(algorithm, begun.ctx, state) if due else None
        with server_side(algorithm, "aggregate"):
            mark = digest(state)
        with server_side(algorithm, "describe"):
            method = algorithm.describe(begun.ctx, state)
        ahead = _begin_ahead(algorithm, population, pool, state, number + 1) if number + 1 < last else None
        served = perf_counter()
        if scores is not None:
            metrics = {**evaluation.metrics(scores()), **metrics}
        ended = perf_counter()
        yield RoundResult(
            round=number + 1,
            state=state,
            digest=mark,
            memory_digest=reduced.memory_digest,
            cohort=begun.cohort,
            failed=reduced.failed,
            metrics=metrics,
            traffic=reduced.traffic + begun.survey,
            seconds={
                "total": ended - began,
                "survey": begun.asking,
                "train": trained - began - begun.asking,
                "server": served - trained,
                "evaluate": ended - served,
            },
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
