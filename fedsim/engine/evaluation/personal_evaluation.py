"""Personal evaluation: score each client's personal model on the client's own test examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from fedsim.base import rng, tree, wire
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.precision import use_precision
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, Context, Score
from fedsim.core.capabilities import count_bytes, personal_models
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.retries import attempt_with_retries, refuse_changes
from fedsim.engine.worker import Worker, one_thread
from fedsim.learning_tasks.learning_task import Scorer
from fedsim.learning_tasks.score import NOTHING, State, add_scores
from fedsim.training.work import client_work

BACKWARD = 3
"""Cost of a training step in forward passes, about."""


class _ScoredClient(NamedTuple):
    """One client's scores, by test convention; those without test examples of the client are missing.

    Attributes:
        client: its number.
        final: of its personal model.
        before: of the model before fine-tuning, or before the last stage; {} if there is no such model.
    """

    client: int
    final: Mapping[str, Score]
    before: Mapping[str, Score]


class TestedClients(NamedTuple):
    """The clients of a personal evaluation.

    Attributes:
        clients: the clients with test examples of any convention, in ascending order.
        untested: number of requested clients without test examples of the first convention.
    """

    clients: list[int]
    untested: int


def select_tested_clients(population: Population, clients: Iterable[int] | None) -> TestedClients:
    """Select the clients with test examples, from these clients or by default from those of the run."""
    asked = population.list_personal_clients() if clients is None else sorted(set(clients))
    conventions = population.list_test_conventions()
    tested = [k for k in asked if any(population.num_tests(k, each) for each in conventions)]
    return TestedClients(tested, sum(not population.num_tests(client) for client in asked))


def has_tuning(algorithm: Algorithm, ctx: Context) -> bool:
    """Return whether clients fine-tune before the personal evaluation."""
    personal = personal_models(algorithm)
    with attribute_server_errors(algorithm, "plan_tuning"):
        return any(personal.plan_tuning(each) is not None for each in ctx.architectures.values())


def personal_evaluation_work(algorithm: Algorithm, population: Population, ctx: Context, client: int) -> int:
    """Estimate the work of evaluating this client's personal model, in forward passes of one example."""
    with attribute_server_errors(algorithm, "plan_tuning"):
        tuning = personal_models(algorithm).plan_tuning(ctx.for_client(client))
    tests = sum(population.num_tests(client, each) for each in population.list_test_conventions())
    if tuning is None:
        return tests
    return 2 * tests + BACKWARD * client_work(tuning, population.partition.size(client)).examples


def evaluate_personal_models(
    worker: Worker,
    round: int,
    clients: Sequence[int],
    broadcasts: Mapping[str, Tree],
    instructions: Mapping[int, Tree],
    client_states: Mapping[int, Tree | None],
) -> PersonalScores:
    """Evaluate the personal models of some clients, one by one.

    Args:
        worker: runs the evaluation.
        round: the round that just ended, counted from 0.
        clients: the clients to evaluate; each has test examples.
        broadcasts: the broadcast to the clients of each architecture: {"0": {payload name: tree}, ...}.
        instructions: {client: its instructions}; may be missing.
        client_states: {client: its state}; None or missing for a client that never trained.

    Raises:
        ClientFailed: a client's code raised, and the fault policy ends the run.
        OutOfMemory: a client's code ran out of memory, and the fault policy ends the run.
    """
    ctx, rows = worker.loader.context(round), list[_ScoredClient]()
    failed, received = list[int](), 0
    with one_thread(), use_precision("float32", worker.device):
        for client in clients:
            client_ctx = ctx.for_client(client)
            down, instruction = broadcasts[str(client_ctx.architecture)], instructions.get(client, {})
            charge = partial(count_bytes, worker.algorithm, client_ctx)
            with attribute_server_errors(worker.algorithm, "count_bytes"):
                received += sum(wire.message_bytes({**down, **instruction}, charge).values())
            row = _try_client(worker, client_ctx, client, down, instruction, client_states.get(client))
            if row is None:
                failed.append(client)
            else:
                rows.append(row)
    table = partial(_make_table, rows, worker.population.scorer)
    more = {name: table(name) for name in worker.population.more_tests}
    return replace(table(""), more=more, failed=tuple(failed), bytes_down=received)


def _make_table(rows: Sequence[_ScoredClient], scorer: Scorer, convention: str) -> PersonalScores:
    """Return the scores of one test convention, of the clients that have test examples of it."""
    mine = [row for row in rows if convention in row.final]
    scores = [row.final[convention] for row in mine]
    # A client without a model before, among others that have one, has the same scores before and after.
    has_before = any(convention in row.before for row in mine)
    before = [row.before.get(convention, row.final[convention]) for row in mine if has_before]
    return PersonalScores(
        clients=np.array([row.client for row in mine], np.int64),
        tests=np.array([score.examples for score in scores], np.int64),
        correct=np.array([score.correct for score in scores], np.int64),
        loss=np.array([score.loss for score in scores], np.float64),
        before_correct=np.array([score.correct for score in before], np.int64) if before else None,
        before_loss=np.array([score.loss for score in before], np.float64) if before else None,
        states=_collect_states(scores),
        before_states=_collect_states(before),
        scorer=scorer,
    )


def _collect_states(scores: Sequence[Score]) -> tuple[Mapping[str, State] | None, ...]:
    """Return the states of metrics by client; () if no metric has a state."""
    return tuple(score.states for score in scores) if any(score.states for score in scores) else ()


def _try_client(
    worker: Worker, ctx: Context, client: int, broadcast: Tree, instruction: Tree, client_state: Tree | None
) -> _ScoredClient | None:
    """Evaluate one client under the fault policy; return its scores, None if it is left out."""
    with refuse_changes(ctx.net, broadcast, client=client, stage="personalize"):
        return attempt_with_retries(
            lambda attempt: _score_client(worker, ctx, client, broadcast, instruction, client_state),
            client=client,
            stage="personalize",
            faults=worker.faults,
            device=worker.device,
        ).value


def _score_client(
    worker: Worker, ctx: Context, client: int, broadcast: Tree, instruction: Tree, client_state: Tree | None
) -> _ScoredClient:
    algorithm, loader = worker.algorithm, worker.loader
    task = loader.make_task_without_batches(algorithm, ctx, client, broadcast, instruction, client_state)
    tuning = personal_models(algorithm).plan_tuning(ctx)
    if tuning is None:
        early = personal_models(algorithm).personalize_before(ctx, task)
        first = {} if early is None else _score_model(worker, ctx, client, early)
        return _ScoredClient(client, _score_personal_model(worker, ctx, client, task), first)
    ctx = replace(ctx, local=replace(tuning, precision=ctx.local.precision))
    before = _score_personal_model(worker, ctx, client, task)
    task = task._replace(batches=loader.make_batches(algorithm, ctx, client, occasion="personal-"))
    return _ScoredClient(client, _score_personal_model(worker, ctx, client, task), before)


def _score_personal_model(worker: Worker, ctx: Context, client: int, task: ClientTask) -> dict[str, Score]:
    """Make the client's personal model from its task and score it."""
    # Dropout may run even without local training, so its random stream does not depend on the batches.
    address = (ctx.seed, "personal-dropout", ctx.round, client)
    random = rng.torch_stream(*address) if ctx.net.stochastic else nullcontext()
    with random, use_precision(ctx.local.precision, worker.device):
        model = personal_models(worker.algorithm).personalize(ctx, task)
    return _score_model(worker, ctx, client, model)


def _score_model(worker: Worker, ctx: Context, client: int, model: Tree) -> dict[str, Score]:
    """Score a model on the client's test examples of each convention."""
    population, model = worker.population, tree.map(tree.to_channels_last, model)
    return {
        name: _score_on_tests(worker, ctx, client, model, name)
        for name in population.list_test_conventions()
        if population.num_tests(client, name)
    }


def _score_on_tests(worker: Worker, ctx: Context, client: int, model: Tree, convention: str) -> Score:
    """Score a personal model on the client's test examples of one convention."""
    personal, total = personal_models(worker.algorithm), NOTHING
    tests = worker.population.get_test_set(convention)
    rows = worker.population.test_positions(client, convention)
    inputs, labels = tree.wrap_array(tests.x), tree.wrap_array(tests.y)
    size = worker.population.dataset.scored_at_once
    with torch.inference_mode():
        for start in range(0, len(rows), size):
            index = tree.wrap_array(rows[start : start + size])
            stored, y = inputs[index].to(worker.device), labels[index].to(worker.device)
            x = tree.to_channels_last(worker.population.dataset.normalise(stored))
            score = worker.population.scorer.score(personal.predict_personal(ctx, model, x), y)
            total = add_scores(total, score)
    return total
