"""Scores and orders against plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.base import rng
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context
from fedsim.core.batches import Batch
from fedsim.curriculum import DataCurriculum
from fedsim.curriculum.pacing import FAMILIES, Family
from fedsim.curriculum.scores import RULES, Order, ScoreName, judge_examples, rank_by_easiness
from fedsim.engine.pools import SerialPool
from fedsim.errors import FedsimError
from fedsim.learning_tasks.tasks import SeveralLabels
from fedsim.models import make_net
from jobs.spec import JobSpec
from tests.fedsim.federations import federation


class Given:
    """Examples that are simply there."""

    difficulty = None

    def __init__(self, *batches: Batch) -> None:
        self.parts = batches

    def __len__(self) -> int:
        return sum(len(batch.x) for batch in self.parts)

    def batches(self) -> Any:
        return iter(self.parts)


def softmax_losses(logits: Any, y: Any) -> Any:
    shifted = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]


def logistic(population: Population, params: Any, client: int) -> tuple[Any, Any]:
    data, rows = population.dataset.train, population.partition.client_positions(client)
    weight, bias = params["head.weight"].double().numpy(), params["head.bias"].double().numpy()
    return data.x[rows].astype(np.float64) @ weight.T + bias, data.y[rows]


def task_of(population: Population, algorithm: Any, received: Any, memory: Any) -> tuple[Context, ClientTask]:
    loader, ctx = SerialPool(algorithm, population).worker.loader, population.context(0)
    return ctx, loader.make_task(algorithm, ctx, 8, {"params": received}, {}, memory)


def test_every_score_is_the_papers() -> None:
    population = federation(model="logistic", rounds=1)
    net = population.nets[0]
    received, own = net.init(1), net.init(2)
    expert = np.random.default_rng(0).random(len(population.dataset.train), dtype=np.float32)
    population = replace(population, difficulty=expert)
    theirs, y = logistic(population, received, 8)
    mine, _ = logistic(population, own, 8)
    losses, my_losses = softmax_losses(theirs, y), softmax_losses(mine, y)
    right, mine_right = theirs.argmax(1) == y, mine.argmax(1) == y
    expected = {
        "global_loss": -losses,
        "local_loss": -my_losses,
        "both_loss": -(losses + my_losses) / 2,
        "global_prediction": right,
        "local_prediction": mine_right,
        "both_prediction": theirs.argmax(1) == mine.argmax(1),
        "expert_loss": -expert[population.partition.client_positions(8)],
    }
    assert expected.keys() == RULES.keys()
    for name, easiness in expected.items():
        algorithm = DataCurriculum(base=FedAvg(), score=name)  # type: ignore[arg-type]
        memory = {"base": {}, "last": own} if algorithm.keeps_model else {}
        ctx, task = task_of(population, algorithm, received, memory)
        np.testing.assert_allclose(algorithm.score_examples(ctx, task), easiness, rtol=1e-5, err_msg=name)


def test_before_its_first_round_a_clients_own_model_is_the_one_that_came_down() -> None:
    population = federation(rounds=1)
    received = population.nets[0].init(1)
    first = DataCurriculum(base=FedAvg(), score="local_loss")
    ctx, task = task_of(population, first, received, None)
    own = first.score_examples(ctx, task)
    assert np.array_equal(own, DataCurriculum(base=FedAvg()).score_examples(ctx, task))
    alike = DataCurriculum(base=FedAvg(), score="both_prediction").score_examples(ctx, task)
    assert (alike == 1).all()


def test_an_expert_that_is_not_there_is_missed() -> None:
    population = federation(rounds=1)
    algorithm = DataCurriculum(base=FedAvg(), score="expert_loss")
    ctx, task = task_of(
        population, DataCurriculum(base=FedAvg(), order="random"), population.nets[0].init(1), None
    )
    with pytest.raises(FedsimError, match="needs an expert's losses"):
        algorithm.score_examples(ctx, task)


def test_several_labels_and_unknown_ones() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 3.0], [1.0, -1.0]])
    nan = float("nan")
    y = torch.tensor([[1.0, nan], [0.0, 1.0], [nan, nan]])
    ctx = federation(rounds=1).context(0)
    net = make_net("logistic", input_shape=(2,), num_classes=2)
    identity = {"head.weight": torch.eye(2), "head.bias": torch.zeros(2)}
    found = judge_examples(
        replace(ctx, nets=(net,), learning_task=SeveralLabels(2)),
        identity,
        Given(Batch(logits[:2], y[:2]), Batch(logits[2:], y[2:])),
    )
    first, second = np.log1p(np.exp(-2.0)), (np.log1p(np.exp(0.5)) + np.log1p(np.exp(-3.0))) / 2
    np.testing.assert_allclose(found.losses, [first, second, 0], rtol=1e-6)
    assert found.right.tolist() == [True, False, True]


def test_scoring_runs_in_evaluation_mode_and_leaves_the_net_as_it_was() -> None:
    net = make_net("resnet9", input_shape=(3, 8, 8), num_classes=3, norm="batch")
    params = net.init(0)
    before = {key: value.clone() for key, value in params.items()}
    ctx = replace(federation(rounds=1).context(0), nets=(net,))
    x, y = torch.randn(6, 3, 8, 8), torch.zeros(6, dtype=torch.int64)
    with net.training_mode():
        whole = judge_examples(ctx, params, Given(Batch(x, y))).losses
        halves = judge_examples(ctx, params, Given(Batch(x[:3], y[:3]), Batch(x[3:], y[3:]))).losses
        assert net.module.training
    np.testing.assert_allclose(whole, halves, rtol=1e-4)  # batch statistics would differ by far more
    assert all(torch.equal(params[key], value) for key, value in before.items())


def test_orders_and_ties_are_as_specified() -> None:
    easiness = np.array([0.5, -1, 2, 0.5, 0.5, np.nan, 2], np.float32)
    easy = rank_by_easiness(easiness, "curriculum", rng.stream(1, "schedule", 0, 0))
    assert set(easy[:2]) == {2, 6}
    assert set(easy[2:5]) == {0, 3, 4}
    assert easy[5:].tolist() == [1, 5]
    hard = rank_by_easiness(easiness, "anti", rng.stream(1, "schedule", 0, 0))
    assert hard[0] == 1
    assert set(hard[1:4]) == {0, 3, 4}
    assert hard[6] == 5
    again = rank_by_easiness(easiness, "curriculum", rng.stream(1, "schedule", 0, 0))
    assert again.tolist() == easy.tolist()
    chance = rng.stream(1, "schedule", 0, 0).permutation(7)
    assert easy.tolist() == np.lexsort((chance, -easiness)).tolist()
    assert hard.tolist() == np.lexsort((chance, easiness)).tolist()
    firsts = [
        rank_by_easiness(np.ones(4, np.float32), "curriculum", rng.stream(1, "schedule", 0, c))[0]
        for c in range(400)
    ]
    # each of four equals is first 100 times in 400, with a standard deviation of 8.7
    assert np.abs(np.bincount(firsts, minlength=4) - 100).max() < 45


def test_the_spec_has_the_names_that_the_science_has() -> None:
    schema = JobSpec.model_json_schema()["$defs"]["DataCurriculumSection"]["properties"]
    assert tuple(schema["score"]["enum"]) == get_args(ScoreName) == tuple(RULES)
    assert tuple(schema["pacing"]["enum"]) == get_args(Family) == tuple(FAMILIES)
    assert tuple(schema["order"]["enum"]) == get_args(Order)
