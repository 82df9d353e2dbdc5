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
9. With a stop rule: check whether the run ends here. Step 6 then waits for this step.
10. Yield the result.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.stopwatch import Stopwatch
from fedsim.clients.population import Population
from fedsim.clock.devices import Devices
from fedsim.core import Algorithm, Context, ReducedUpdates, Reduction, Traffic
from fedsim.core.capabilities import ServerTraining, capability
from fedsim.engine.argument_checks import check_arguments
from fedsim.engine.asynchronous.rounds import make_rounds
from fedsim.engine.client_pool import ClientPool
from fedsim.engine.evaluation.scoring import Personal, PersonalEvaluationProgress, RoundEvaluation
from fedsim.engine.initial_state import make_state_and_traffic
from fedsim.engine.results import RoundResult
from fedsim.engine.round_start import StartedRound
from fedsim.engine.server_training import ServerTrainingProgress, train_server
from fedsim.engine.stopping import StopProgress, StopRule
from fedsim.engine.worker import one_thread
from fedsim.training.effort import CostMeter
from fedsim.uploads.model_updates import unwrap

if TYPE_CHECKING:
    from fedsim.engine.resume_point import Checkpoint

__all__ = ["RoundResult", "simulate", "simulate_with_progress"]

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
    stop: StopRule | None = None,
    devices: Devices | None = None,
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RoundResult]:
    """Run a federation round by round; stop iterating to stop the run.

    Args:
        algorithm: the algorithm to run.
        population: the data and the architectures of all clients, and the settings of the run.
        pool: trains the clients; the caller closes it.
        rounds: number of rounds, with those before `resume` included; by default those of the settings.
        evaluate_every: evaluate the deployed models after rounds n, 2n, 3n, ... and after the last round.
        personal: policy for the personal evaluation; see `is_personal_evaluation_due`.
        stop: when the run ends before its last round; the last result says why (`RoundResult.end`). The
            digests of the rounds stay the same.
        devices: the devices of the clients, for a simulated clock (`RoundResult.clock`); None for no clock.
        resume: continue after the round of this checkpoint; the pool must be new.
        device: device of the server training.

    Yields:
        One result per round, as soon as the round is finished.

    Raises:
        ClientFailed, CohortFailed: clients raised, and the pool's fault policy ends the run.
        MethodFailed: the algorithm's code on the server raised.
        OutOfMemory: a client or the server ran out of memory.
        SpecError: a hyper-parameter or a setting has a wrong value, or the metric of `stop` is not among the
            metrics of an evaluated round.
        DataError: no client of the federation holds an example. (If only the clients of one round hold none,
            that round leaves the models as they are.)

    Example:
        Five clients train an MLP with FedAvg for three rounds:

        >>> from fedsim.algorithms.fedavg import FedAvg
        >>> from fedsim.clients.population import Population
        >>> from fedsim.core import LocalTraining, RunSettings
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
        ...     settings=RunSettings(rounds=3, cohort_size=5, local=LocalTraining(epochs=1, batch_size=16)),
        ... )
        >>> algorithm = FedAvg()
        >>> results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
        >>> [(result.round, result.cohort) for result in results]
        [(1, (0, 1, 2, 3, 4)), (2, (0, 1, 2, 3, 4)), (3, (0, 1, 2, 3, 4))]
        >>> results[-1].metrics["global_accuracy"] > 0.5
        True
    """
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every, "personal": personal}
    options |= {"stop": stop and StopProgress(stop), "resume": resume, "device": device, "devices": devices}
    for stage in simulate_with_progress(algorithm, population, pool, **options):
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
    stop: StopProgress | None = None,
    devices: Devices | None = None,
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RoundEvent]:
    """Run `simulate`, and also yield the progress of server training and of personal evaluation."""
    last = population.settings.rounds if rounds is None else rounds
    check_arguments(algorithm, population, pool)
    state, census_traffic = _make_first_state(algorithm, population, pool, resume)
    server_training = capability(algorithm, ServerTraining)
    trains_first = server_training is not None and server_training.trains_before_evaluation
    meter, has_warned, has_diverged = CostMeter(algorithm, population), False, False
    starter = make_rounds(algorithm, population, pool, devices, meter, resume)
    server_device = torch.device(device)
    next_round: StartedRound | None = None
    if stop is not None and resume is not None:
        stop = stop.add_all(resume.records)
        if stop.find_reason():
            return
    for number in range(resume.round if resume else 0, last):
        stopwatch, is_last = Stopwatch(), number + 1 == last
        # Step 1: start the clients, unless step 6 of the previous round has started them.
        started = next_round or starter.start(state, number)
        ctx = started.ctx
        # A deadline limits the training, not the tuning of personal models.
        unlimited_ctx = replace(ctx, limits={})
        with one_thread():
            # Step 2: wait for the client updates, reduced to sums and means.
            reduced = started.wait_for_clients()
            stopwatch.end_part("train")
            has_warned = has_warned or _warn_if_no_mean(algorithm, ctx, reduced)
            has_diverged = has_diverged or _warn_if_diverged(ctx, reduced)
            # Step 3: aggregate.
            with attribute_server_errors(algorithm, "aggregate"), starter.server_counter:
                state = algorithm.aggregate(ctx, started.state, reduced)
        # Step 5, before step 4: train on the server, where the evaluation needs the trained state.
        if trains_first:
            stopwatch.end_part("server")
            state = yield from train_server(
                algorithm, ctx, state, reduced, server_device, starter.server_counter
            )
            stopwatch.end_part("learn")
        # Step 4: start the evaluation.
        evaluation = RoundEvaluation(
            algorithm, population, pool, unlimited_ctx, state, evaluate_every, personal
        )
        evaluation.begin(is_last)
        stopwatch.end_part("server")
        # Step 5: train on the server, while the evaluation runs.
        if not trains_first:
            state = yield from train_server(
                algorithm, ctx, state, reduced, server_device, starter.server_counter
            )
            stopwatch.end_part("learn")
        reading, in_flight = started.read_clock(reduced), starter.list_in_flight()
        # Step 6: start the clients of the next round, unless the scores may end the run.
        may_go_on = not is_last and stop is None
        next_round = starter.start_early(state, number + 1) if may_go_on else None
        # Step 7: make the round's result, without scores.
        unscored = _make_unscored_result(algorithm, meter, started, state, reduced)
        unscored = replace(unscored, clock=reading, in_flight=in_flight)
        stopwatch.end_part("server")
        # Step 8: wait for the scores.
        yield from evaluation.wait(stopwatch)
        unscored = replace(unscored, traffic=unscored.traffic + census_traffic)
        seconds = stopwatch.seconds(started.survey_seconds)
        result = _add_scores(unscored, evaluation, meter, unlimited_ctx, seconds)
        # Step 9: if a stop rule ends the run here, evaluate what only a last round evaluates.
        if stop is not None:
            if not is_last and stop.add(result.record(), evaluation.is_due).find_reason():
                evaluation.begin(is_last=True)
                yield from evaluation.wait(stopwatch)
                seconds = stopwatch.seconds(started.survey_seconds)
                result = _add_scores(unscored, evaluation, meter, unlimited_ctx, seconds)
            stop = stop.add(result.record(), evaluation.is_due)
            is_last = is_last or stop.find_reason() is not None
            is_result, end = stop.result_round == result.round, stop.make_end() if is_last else None
            result = replace(result, is_result=is_result, end=end)
        # Step 10: yield the result.
        yield result
        if is_last:
            return
        census_traffic = Traffic()  # the label census runs once; the first round of this call pays for it


def _make_first_state(
    algorithm: Algorithm, population: Population, pool: ClientPool, resume: Checkpoint | None
) -> tuple[Any, Traffic]:
    """Return the server state before the first round of this call, and the traffic of the label census."""
    if resume is None:
        return make_state_and_traffic(algorithm, population)
    for client_states in resume.client_states:
        pool.restore_client_states(client_states)
    return resume.state, Traffic()


def _warn_if_no_mean(algorithm: Algorithm, ctx: Context, reduced: ReducedUpdates) -> bool:
    """Log a warning and return True if clients came whose weights have no sum above 0, and so no mean."""
    means = {Reduction.MEAN, Reduction.OVERALL_MEAN}.intersection(algorithm.uploads.values())
    if not means or not reduced.clients or sum(reduced.weights) > 0:
        return False
    if any(reduced.weights):
        _LOG.warning(
            "round %d: the sum of the client weights is %s, and has to be above 0; the server's model is "
            "unchanged. This is logged once. Check weigh_client of %s",
            ctx.round + 1,
            sum(reduced.weights),
            type(algorithm).__name__,
        )
        return True
    advice = "data.partition.min_size: 1 gives every client an example"
    if sum(reduced.num_examples):
        advice = f"The clients have examples, and {type(unwrap(algorithm)).__name__} gives them these weights"
    _LOG.warning(
        "round %d: all client weights are 0; the server's model is unchanged. This is logged once. %s",
        ctx.round + 1,
        advice,
    )
    return True


def _warn_if_diverged(ctx: Context, reduced: ReducedUpdates) -> bool:
    """Log a warning and return True if the training loss is not finite, though clients had examples."""
    loss = reduced.metrics.get("train_loss", 0.0)
    if math.isfinite(loss) or not sum(reduced.num_examples):
        return False
    _LOG.warning(
        "round %d: the training loss is %s: a model has diverged. This is logged once. A smaller local.lr or "
        "local.clip_norm may help; with an algorithm of your own, check its loss",
        ctx.round + 1,
        loss,
    )
    return True


def _make_unscored_result(
    algorithm: Algorithm, meter: CostMeter, started: StartedRound, state: Any, reduced: ReducedUpdates
) -> RoundResult:
    """Return the round's result without scores, seconds and the traffic of a label census."""
    with attribute_server_errors(algorithm, "digest of the server state"):
        state_digest = digest(state)
    with attribute_server_errors(algorithm, "describe_round"):
        method = algorithm.describe_round(started.ctx, state)
        _check_record(method)
    return RoundResult(
        round=started.ctx.round + 1,
        state=state,
        digest=state_digest,
        memory_digest=reduced.memory_digest,
        cohort=started.cohort,
        failed=reduced.failed,
        metrics=reduced.metrics,
        traffic=reduced.traffic + started.other_traffic,
        cost=started.count_cost(meter, reduced),
        engine=reduced.engine,
        method=method,
    )


def _check_record(said: Any) -> None:
    """Raise TypeError unless a method's record is a mapping that JSON can hold."""
    if not isinstance(said, Mapping):
        found = tree.describe_type(said)
        raise TypeError(f"it returned {found}; return a mapping of numbers, strings and short lists")
    for name, value in said.items():
        try:
            json.dumps(value)
        except TypeError:
            kind = type(value).__name__
            raise TypeError(f"{name!r} is a {kind}; make it a number, a string or a short list") from None
    _check_keys(said)


def _check_keys(said: Any) -> None:
    """Raise TypeError if a mapping in a method's record has a key that is no string."""
    if isinstance(said, Mapping):
        if wrong := [key for key in said if not isinstance(key, str)]:
            raise TypeError(f"the key {wrong[0]!r} is {tree.describe_type(wrong[0])}; make it a string")
        said = list(said.values())
    if isinstance(said, list | tuple):
        for part in said:
            _check_keys(part)


def _add_scores(
    result: RoundResult,
    evaluation: RoundEvaluation,
    meter: CostMeter,
    ctx: Context,
    seconds: Mapping[str, float],
) -> RoundResult:
    """Add the metrics of the deployed models, the scores and costs of the personal ones, and the seconds."""
    deployed, personal = evaluation.metrics, evaluation.personal
    result = replace(result, seconds=seconds)
    if personal is None:
        return replace(result, metrics={**deployed, **result.metrics})
    return replace(
        result,
        metrics={**deployed, **personal.metrics(), **result.metrics},
        traffic=result.traffic + Traffic(personal=personal.bytes_down),
        cost=result.cost + meter.tuning_cost(ctx, personal.list_evaluated()),
        personal=personal,
    )
