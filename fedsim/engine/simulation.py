"""The round loop: one loop for every algorithm and every pool.

`simulate` is the entry point. `simulate_with_progress` holds the loop; one round has these steps:

1. Start the clients: run the client survey (if the algorithm has one), select the cohort, start its training.
2. Wait for the client updates; the pool reduces them to sums and means.
3. Aggregate: `Algorithm.aggregate` makes the new server state.
4. Start the evaluation of the deployed models and, if due, of the personal models.
5. Train on the server (`ServerTraining.train_server`), while the evaluation runs. An algorithm with
   `trains_before_evaluation` does this before step 4.
6. Start step 1 of the next round, so that no worker is idle.
7. Make the round's result: digest, traffic, cost.
8. Wait for the scores.
9. Yield the result.
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
    """Run a federation round by round; stop iterating to stop the run.

    Args:
        algorithm: the algorithm to run.
        population: the data, the architectures and the local training of all clients.
        pool: trains the clients; the caller closes it.
        rounds: number of rounds, with those before `resume` included; by default `population.rounds`.
        evaluate_every: evaluate the deployed models after rounds n, 2n, 3n, ... and after the last round.
        personal: policy for the personal evaluation; see `is_personal_evaluation_due`.
        resume: continue after the round of this checkpoint; the pool must be new.
        device: device of the server training.

    Yields:
        One result per round, as soon as the round is finished.

    Raises:
        ClientFailed, CohortFailed: clients raised, and the pool's fault policy ends the run.
        MethodFailed: the algorithm's code on the server raised.
        OutOfMemory: a client or the server ran out of memory.
        DataError: no client of the federation holds an example. (If only the clients of one round hold none,
            that round leaves the models as they are.)

    Example:
        Five clients train an MLP with FedAvg for three rounds:

        >>> from fedsim.algorithms.fedavg import FedAvg
        >>> from fedsim.clients.population import Population
        >>> from fedsim.core import LocalTraining
        >>> from fedsim.data import load_dataset, make_federation
        >>> from fedsim.engine.pools import SerialPool
        >>> from fedsim.models import make_net
        >>> data = load_dataset("synthetic", roots=(), examples=400, test_examples=100, classes=3, dims=8)
        >>> federation = make_federation(data, "dirichlet", num_clients=5, seed=0, beta=1.0)
        >>> net = make_net("mlp", input_shape=data.input_shape, num_classes=data.num_classes)
        >>> population = Population(
        ...     dataset=federation.dataset,
        ...     partition=federation.train,
        ...     nets=(net,),
        ...     local=LocalTraining(epochs=1, batch_size=16, lr=0.1),
        ...     seed=0,
        ...     cohort_size=5,
        ...     rounds=3,
        ... )
        >>> algorithm = FedAvg()
        >>> results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
        >>> [(result.round, result.cohort) for result in results]
        [(1, (0, 1, 2, 3, 4)), (2, (0, 1, 2, 3, 4)), (3, (0, 1, 2, 3, 4))]
        >>> results[-1].metrics["global_accuracy"] > 0.5
        True
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
    """Run `simulate`, and also yield the progress of server training and of personal evaluation."""
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
        # Step 1: start the clients, unless step 6 of the previous round has started them.
        begun = ahead or _begin_round(algorithm, population, pool, state, number)
        with one_thread():
            # Step 2: wait for the client updates, reduced to sums and means.
            reduced = begun.wait_for_clients()
            clock.end_part("train")
            told = told or _warn_if_no_mean(algorithm, begun.ctx, reduced)
            # Step 3: aggregate.
            with attribute_server_errors(algorithm, "aggregate"):
                state = algorithm.aggregate(begun.ctx, begun.state, reduced)
        # Step 5, before step 4: train on the server, where the evaluation needs the trained state.
        if trains_first:
            clock.end_part("server")
            state = yield from train_server(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.end_part("learn")
        # Step 4: start the evaluation.
        scoring = PendingScores()
        if (number + 1) % evaluate_every == 0 or number + 1 == last:
            mine = is_personal_evaluation_due(personal, algorithm, population, begun.ctx, number + 1 == last)
            scoring = begin_scoring(algorithm, pool, begun.ctx, state, mine)
        clock.end_part("server")
        # Step 5: train on the server, while the evaluation runs.
        if not trains_first:
            state = yield from train_server(algorithm, begun.ctx, state, reduced, torch.device(device))
            clock.end_part("learn")
        # Step 6: start the clients of the next round.
        ahead = (
            _begin_next_round(algorithm, population, pool, state, number + 1) if number + 1 < last else None
        )
        # Step 7: make the round's result, without scores.
        account = _make_round_result(algorithm, meter, begun, state, reduced)
        clock.end_part("server")
        # Step 8: wait for the scores.
        metrics = evaluation.scores_to_metrics(scoring.deployed())
        clock.end_part("evaluate")
        own = yield from wait_for_personal_scores(scoring, number + 1)
        clock.end_part("personal")
        # Step 9: yield the result.
        yield replace(
            account,
            metrics={**metrics, **own.metrics(), **reduced.metrics},
            traffic=account.traffic + enrolling + Traffic(personal=own.bytes_down),
            tuning=meter.tuning_cost(begun.ctx, own.clients.tolist()),
            seconds=clock.seconds(begun.survey_seconds),
            personal=own if scoring.personal else None,
        )
        enrolling = Traffic()  # the label census runs once; the first round of this call pays for it


def _check_examples(population: Population) -> None:
    """Raise DataError if no client holds a training example."""
    if not population.partition.mean_size:
        raise DataError(
            f"none of the {population.partition.num_clients} clients holds an example",
            "raise data.limit, or have data.public and evaluation.validation take less away",
        )


def _warn_if_no_mean(algorithm: Algorithm, ctx: Context, reduced: ReducedUpdates) -> bool:
    """Log a warning and return True if all client weights are zero: the round then has no mean."""
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
    """Return the round's result without its scores, its seconds and the cost of fine-tuning."""
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
    """A round whose clients have started training.

    Attributes:
        ctx: the round's context.
        state: the server state at the start of the round.
        cohort: the round's clients.
        survey_traffic: traffic of the client survey before the round.
        survey_seconds: wall-clock seconds of the client survey.
        wait_for_clients: waits until the clients are done and returns their reduced updates.
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
    """Run the client survey, select the cohort and start its training."""
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
        return _begin_round(algorithm, population, pool, state, number)
    except FedsimError:
        return None


def _run_survey(algorithm: Algorithm, ctx: Context, state: Any, pool: ClientPool) -> tuple[Any, Traffic]:
    """Run the client survey, if the algorithm has one; return the new server state and the traffic."""
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
    """Put the checkpoint's client states into the pool and return its server state."""
    for client_states in checkpoint.client_states:
        pool.restore_client_states(client_states)
    return checkpoint.state
