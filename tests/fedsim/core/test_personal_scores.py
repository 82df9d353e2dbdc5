"""Clients' own models on their own test examples: identities first, then the faults, then the arithmetic."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context, PersonalScores
from fedsim.core.personal_scores import join_scores, scores_from_rows, sorted_curve, summarise_scores
from fedsim.engine.client_pool import PersonalEvaluation
from fedsim.engine.faults import Faults
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import ClientFailed
from fedsim.learning_tasks.learning_task import Scorer
from fedsim.learning_tasks.tasks import NextToken
from fedsim.models.net import Params
from fedsim.training.local_loop import run_sgd
from fedsim.training.losses import cross_entropy
from tests.fedsim.federations import parted
from tests.fedsim.methods import Keeper, Tuned


def run_out(examination: PersonalEvaluation) -> tuple[PersonalScores, list[int]]:
    """What an examination returns, and what it yields."""
    told = []
    while True:
        try:
            told.append(next(examination))
        except StopIteration as end:
            return end.value, told


def scored(algorithm: FedAvg, population: Population, rounds: int = 0, **faults: Any) -> PersonalScores:
    """The scores after some rounds on a pool of one's own."""
    pool = SerialPool(algorithm, population, faults=Faults(**faults))
    state = make_initial_state(algorithm, population)
    for result in simulate(algorithm, population, pool, rounds=rounds):
        state = result.state
    ctx = population.context(max(0, rounds - 1))
    return run_out(pool.begin_personal_evaluation(ctx, state))[0]


def by_hand(population: Population, client: int, params: Params) -> tuple[int, float]:
    """Right answers and the summed loss on one client's tests, without the engine."""
    assert population.tests is not None
    rows, test = population.tests.client_positions(client), population.dataset.test
    logits = population.nets[0](params, torch.from_numpy(test.x[rows].copy()))
    y = torch.from_numpy(test.y[rows].copy())
    return int((logits.argmax(1) == y).sum()), float(
        torch.nn.functional.cross_entropy(logits.double(), y, reduction="sum")
    )


def test_the_personal_model_of_fedavg_is_the_global_one() -> None:
    """One partition of the test set, one model: pooled, it is the global accuracy to the last bit."""
    population = parted("merged")
    pool = SerialPool(FedAvg(), population)
    (*_, last) = simulate(FedAvg(), population, pool)
    scores, told = run_out(pool.begin_personal_evaluation(population.context(1), last.state))
    assert told == [1, 2, 3, 4, 5, 6]
    assert scores.before_correct is None
    assert scores.tests.sum() == len(population.dataset.test)
    assert scores.metrics()["personal_accuracy"] == last.metrics["global_accuracy"]
    assert scores.metrics()["personal_loss"] == pytest.approx(last.metrics["global_loss"], rel=1e-6)
    for client in range(6):
        correct, loss = by_hand(population, client, last.state.params)
        assert scores.correct[client] == correct
        assert scores.loss[client] == pytest.approx(loss, rel=1e-6)
    model = sum(value.numel() * 4 for value in last.state.params.values())
    assert scores.bytes_down == 6 * model


def test_fine_tuning_is_plain_training_and_before_it_stands_the_shared_model() -> None:
    population, algorithm = parted(), Tuned()
    scores = scored(algorithm, population, rounds=2)
    plain = scored(FedAvg(), population, rounds=2)
    np.testing.assert_array_equal(scores.before_correct, plain.correct)
    np.testing.assert_array_equal(scores.before_loss, plain.loss)
    assert scores.loss.sum() < plain.loss.sum()
    assert {"personal_accuracy", "personal_accuracy_before", "personal_loss_before"} <= set(scores.metrics())


def test_every_client_is_scored_for_itself() -> None:
    """Alone, in any order and among others: the same numbers."""
    population, algorithm = parted(), Tuned()
    everybody = scored(algorithm, population)
    pool, state = SerialPool(algorithm, population), make_initial_state(algorithm, population)
    some, _ = run_out(pool.begin_personal_evaluation(population.context(0), state, [4, 1]))
    assert some.clients.tolist() == [1, 4]
    assert some.correct.tolist() == everybody.correct[[1, 4]].tolist()
    assert some.loss.tolist() == everybody.loss[[1, 4]].tolist()


def test_client_states_are_read_and_left_alone() -> None:
    """The client's own head is scored; afterwards heads and digests are what they were."""
    population, algorithm = parted(cohort_size=3), Keeper()
    pool = SerialPool(algorithm, population)
    (*_, last) = simulate(algorithm, population, pool, rounds=1)
    before = {client: tree.map(torch.clone, memory) for client, memory in pool.client_states().items()}
    scores, _ = run_out(pool.begin_personal_evaluation(population.context(0), last.state))
    assert set(pool.client_states()) == set(before) == set(last.cohort)
    for client, memory in pool.client_states().items():
        assert all(torch.equal(memory[key], before[client][key]) for key in memory)
    fresh = algorithm.init_client_state(population.context(0), {})
    for client in range(6):
        head = before.get(client, fresh)
        assert scores.correct[client] == by_hand(population, client, {**last.state.params, **head})[0]


def test_asking_changes_no_round() -> None:
    """Fine-tuning draws from streams of its own."""
    population, algorithm = parted(), Tuned()
    pool = SerialPool(algorithm, population)
    marks = []
    for result in simulate(algorithm, population, pool):
        run_out(pool.begin_personal_evaluation(population.context(result.round - 1), result.state))
        marks.append(result.digest)
    quiet = [result.digest for result in simulate(algorithm, population, SerialPool(algorithm, population))]
    assert marks == quiet


@dataclass(frozen=True, kw_only=True)
class Stumbling(Tuned):
    """Raises for the client that holds this many examples."""

    unlucky: int = -1

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """Or not."""
        if task.num_examples == self.unlucky:
            raise ValueError("no")
        return super().personalize(ctx, task)


def test_a_client_that_raises_is_treated_as_in_training() -> None:
    population = parted()
    algorithm = Stumbling(unlucky=population.partition.size(2))
    with pytest.raises(ClientFailed) as caught:
        scored(algorithm, population)
    assert (caught.value.client, caught.value.stage) == (2, "personalize")
    scores = scored(algorithm, population, client_error="skip")
    assert scores.failed == (2,)
    assert scores.clients.tolist() == [0, 1, 3, 4, 5]


def test_clients_without_tests_are_counted_and_left_out() -> None:
    population = parted()
    assert population.tests is not None
    sizes = population.tests.sizes().copy()
    sizes[[1, 2]] = [0, sizes[1] + sizes[2]]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    population = replace(population, tests=replace(population.tests, offsets=offsets))
    scores = scored(FedAvg(), population)
    assert scores.untested == 1
    assert scores.clients.tolist() == [0, 2, 3, 4, 5]
    assert scores.metrics()["personal_untested"] == 1


def test_with_the_global_convention_everybody_is_tested_on_everything() -> None:
    population = parted("global")
    scores = scored(FedAvg(), population)
    assert set(scores.tests.tolist()) == {len(population.dataset.test)}
    assert len(set(scores.correct.tolist())) == 1


def test_the_figures() -> None:
    """Twenty clients of 10 tests; two have none right and one has 1: the worst tenth is the first two."""
    correct = np.array([0, 0, 1, *[10] * 17])
    tests = np.array([10] * 19 + [30])
    found = summarise_scores(tests, correct, np.full(20, 5.0))
    assert found["personal_accuracy"] == pytest.approx(171 / 220)
    assert found["personal_accuracy_mean"] == pytest.approx((0.1 + 16 + 1 / 3) / 20)
    assert found["personal_accuracy_worst10"] == 0.0
    assert found["personal_accuracy_std"] == pytest.approx(np.std(correct / tests))
    assert found["personal_loss"] == pytest.approx(100 / 220)
    assert summarise_scores(np.array([], np.int64), np.array([], np.int64), np.array([])) == {}


def test_a_client_whose_labels_are_all_unknown_does_not_count_in_means() -> None:
    scorer = Scorer(NextToken(4), ("accuracy", "perplexity"))
    found = summarise_scores(np.array([10, 0]), np.array([5, 0]), np.array([10.0, 0.0]), (), scorer)
    assert (found["personal_accuracy_mean"], found["personal_accuracy_worst10"]) == (0.5, 0.5)
    assert found["personal_perplexity_mean"] == pytest.approx(np.e)


def test_tables_curves_and_portions() -> None:
    population = parted()
    scores = scored(Tuned(), population, rounds=1)
    rows: list[Mapping[str, Any]] = list(csv.DictReader(StringIO(scores.to_csv())))
    back = scores_from_rows(rows)
    assert back.metrics() == pytest.approx({**scores.metrics(), "personal_untested": 0})
    clients, curve = sorted_curve(scores)
    assert sorted(clients.tolist()) == list(range(6))
    assert np.all(np.diff(curve) >= 0)
    halves = [join_scores([scores]), PersonalScores(failed=(9,))]
    assert join_scores(halves, 2).failed == (9,)
    assert join_scores([], 3).metrics() == {}


def test_training_and_tuning_by_hand() -> None:
    """The personal model is what `sgd` makes of the visit's batches."""
    population, algorithm = parted(), Tuned()
    scores, state = scored(algorithm, population), make_initial_state(algorithm, population)
    worker = SerialPool(algorithm, population).worker
    ctx = replace(population.context(0), local=algorithm.plan_tuning(population.context(0)))
    down = algorithm.broadcast(ctx, state)
    task = worker.loader.make_task_without_batches(algorithm, ctx, 3, down, {}, None)
    task = task._replace(batches=worker.loader.make_batches(algorithm, ctx, 3, occasion="personal-"))
    trained = run_sgd(ctx, task, state.params, lambda p, b: cross_entropy(ctx.net(p, b.x), b)).params
    assert scores.correct[3] == by_hand(population, 3, trained)[0]
