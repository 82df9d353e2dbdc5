"""After which rounds models are scored, and how far that is: the deployed ones, and the clients' own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, PersonalScores, Score
from fedsim.engine.client_pool import ClientPool, PersonalEvaluation
from fedsim.engine.personal_evaluation import has_tuning
from fedsim.engine.server_training import TELL_SECONDS

Personal: TypeAlias = Literal["auto", "never", "last", "always"]


@dataclass(frozen=True)
class PersonalEvaluationProgress:
    """How far the scoring of the clients' own models is.

    Attributes:
        round: after which they are scored, from 1.
        done: how many clients are.
    """

    round: int
    done: int


def is_personal_evaluation_due(
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
        return last and not algorithm.deploys_models
    return last or not has_tuning(algorithm, ctx)


@dataclass(frozen=True)
class PendingScores:
    """Models that are being scored after a round: the deployed ones, and the clients' own."""

    deployed: Callable[[], Mapping[str, Score]] = dict
    personal: PersonalEvaluation | None = None


def begin_scoring(
    algorithm: Algorithm, pool: ClientPool, ctx: Context, state: Any, personal: bool
) -> PendingScores:
    """Have the pool score the deployed models, and with `personal` the clients' own."""
    scores = pool.begin_evaluation(algorithm, ctx, state)
    return PendingScores(scores, pool.begin_personal_evaluation(algorithm, ctx, state) if personal else None)


def wait_for_personal_scores(
    scoring: PendingScores, round: int
) -> Generator[PersonalEvaluationProgress, None, PersonalScores]:
    """The clients' own scores; none where nobody is scored."""
    if scoring.personal is None:
        return PersonalScores()
    told = perf_counter()
    while True:
        try:
            done = next(scoring.personal)
        except StopIteration as end:
            scores: PersonalScores = end.value
            return scores
        if perf_counter() - told > TELL_SECONDS:
            told = perf_counter()
            yield PersonalEvaluationProgress(round, done)
