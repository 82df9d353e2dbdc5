"""Evaluation after a round: start it, wait for it, and report the progress of personal evaluation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from fedsim.base.progress import relay_progress
from fedsim.base.stopwatch import Stopwatch
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, PersonalScores, Score
from fedsim.engine.client_pool import ClientPool, PersonalEvaluation
from fedsim.engine.evaluation.personal_evaluation import has_tuning
from fedsim.engine.membership import measure_membership
from fedsim.engine.server_training import TELL_SECONDS, ServerTrainingProgress
from fedsim.learning_tasks.learning_task import Scorer

Personal: TypeAlias = Literal["auto", "never", "last", "always"]


@dataclass(frozen=True)
class PersonalEvaluationProgress:
    """Progress of the personal evaluation.

    Attributes:
        round: the round before the evaluation, counted from 1.
        done: number of clients already evaluated.
    """

    round: int
    done: int


def is_personal_evaluation_due(
    policy: Personal, algorithm: Algorithm, population: Population, ctx: Context, last: bool
) -> bool:
    """Return whether the personal models are evaluated after this round (a round with evaluation).

    Args:
        policy: "never", "last" (after the last round), "always", or "auto". "auto" with test examples per
            client: always, but only after the last round if clients fine-tune first. "auto" with one
            global test set: after the last round, if the algorithm deploys no model.
        algorithm: the algorithm.
        population: the federation.
        ctx: the round's context.
        last: whether the round is the last one.
    """
    if policy != "auto":
        return policy == "always" or (policy == "last" and last)
    if all(tests is None for tests in (population.tests, *population.more_tests.values())):
        return last and not algorithm.deploys_models
    return last or not has_tuning(algorithm, ctx)


class RoundEvaluation:
    """The evaluation of one round: `begin` starts its parts that are due, `wait` waits for them.

    Args:
        algorithm: the algorithm.
        population: the federation.
        pool: runs the evaluation.
        ctx: the round's context.
        state: the server state to evaluate.
        every: evaluate the deployed models after rounds n, 2n, 3n, ... and after the last round.
        policy: for the personal evaluation; see `is_personal_evaluation_due`.

    Attributes:
        is_due: whether the round is evaluated at all.
        metrics: of the deployed models; {} before `wait`, and in a round without evaluation.
        personal: scores of the personal models; None before `wait`, and if they are not evaluated.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        pool: ClientPool,
        ctx: Context,
        state: Any,
        every: int,
        policy: Personal,
    ) -> None:
        self._algorithm, self._population, self._pool = algorithm, population, pool
        self._ctx, self._state, self._policy = ctx, state, policy
        self.is_due, self._on_schedule = False, (ctx.round + 1) % every == 0
        self.metrics: Mapping[str, float] = {}
        self.personal: PersonalScores | None = None
        self._deployed: Callable[[], Mapping[str, Score]] | None = None
        self._personal: PersonalEvaluation | None = None

    def begin(self, is_last: bool) -> None:
        """Start the parts that are due; a second call starts only what the last round needs besides."""
        algorithm, ctx, had_begun = self._algorithm, self._ctx, self.is_due
        self.is_due = self._on_schedule or is_last
        if not self.is_due:
            return
        if not had_begun:
            self._deployed = self._pool.begin_evaluation(ctx, self._state)
        if self.personal is None and is_personal_evaluation_due(
            self._policy, algorithm, self._population, ctx, is_last
        ):
            self._personal = self._pool.begin_personal_evaluation(ctx, self._state)

    def wait(self, stopwatch: Stopwatch) -> Generator[PersonalEvaluationProgress, None, None]:
        """Wait for the started parts, and yield the progress of the personal evaluation."""
        if self._deployed is not None:
            scores, self._deployed = self._deployed(), None
            self.metrics = scores_to_metrics(scores, self._population.scorer)
        stopwatch.end_part("evaluate")
        if self._personal is not None:
            make_event = partial(PersonalEvaluationProgress, self._ctx.round + 1)
            self.personal = yield from relay_progress(self._personal, make_event, TELL_SECONDS)
            self._personal = None
        stopwatch.end_part("personal")


def describe_progress(event: PersonalEvaluationProgress | ServerTrainingProgress, num_clients: int) -> str:
    """Describe the progress within a round, such as "round 3: scored 20 of 100 personal models"."""
    if isinstance(event, PersonalEvaluationProgress):
        return f"round {event.round}: scored {event.done:,} of {num_clients:,} personal models"
    activity, done, most = event.progress
    return f"round {event.round}: {activity}, {done:,} of {most:,} steps"


def scores_to_metrics(scores: Mapping[str, Score], scorer: Scorer) -> dict[str, float]:
    """Return the metrics of every model, such as `NAME_accuracy`, and `NAME_loss` (the mean loss).

    With scores on members, also the figures of membership inference.
    """
    found: dict[str, float] = {}
    for name, score in scores.items():
        found |= {f"{name}_{metric}": value for metric, value in scorer.values(score).items()}
        found[f"{name}_loss"] = score.loss / max(score.examples, 1)
    return found | measure_membership(scores)
