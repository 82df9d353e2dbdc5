"""KT-pFL, FedKD and FedAD scored after their public stage: against the next round, and the usual scores."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch

from actors.ray_pool import RayPool
from fedsim.algorithms import FedAD, FedKD, KTpFL
from fedsim.core import Algorithm, ClientTask, Context
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel
from tests.fedsim.linear_models import linear, mixed
from tests.open_actors import open_actors

ONE_SHOT: dict[str, Any] = {"local_rounds": 1, "server_epochs": 1}
METHODS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "kt_pfl": (KTpFL, {"public_size": 30, "public_lr": 0.5}),
    "fedkd": (FedKD, ONE_SHOT),
    "fedad": (FedAD, {**ONE_SHOT, "lambda_att": 0}),
}


class Idle:
    """A method whose clients train on their own examples in the first round alone."""

    def train_locally(
        self, ctx: Context, task: ClientTask, start: Params, trainable: Collection[str]
    ) -> TrainedModel:
        """The model as it is, after the first round."""
        if ctx.round:
            return TrainedModel(start, torch.zeros(()), 0)
        return super().train_locally(ctx, task, start, trainable)  # type: ignore[misc, no-any-return]


def scores(algorithm: Algorithm, population: Any, pool: Any = None) -> list[RoundResult]:
    pool = pool or SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool, personal="always"))


@pytest.mark.parametrize("name", METHODS)
def test_the_public_stage_is_that_with_which_the_next_round_begins(name: str) -> None:
    kind, how = METHODS[name]
    population = mixed(rounds=2)
    scored = scores(kind(scored_after="public", **how), population)[0]
    after = scores(type("Idle", (Idle, kind), {})(**how), population)[1]
    assert scored.personal is not None
    assert after.personal is not None
    assert scored.personal.loss.tolist() == after.personal.loss.tolist()
    assert scored.metrics["personal_loss"] != scored.metrics["personal_loss_before"]


@pytest.mark.parametrize("name", METHODS)
def test_the_score_before_is_the_usual_one_and_training_stays_the_same(name: str) -> None:
    kind, how = METHODS[name]
    population = linear(rounds=3, cohort_size=4)
    usual = scores(kind(**how), population)
    scored = scores(kind(scored_after="public", **how), population)
    for plain, result in zip(usual, scored, strict=True):
        assert (result.digest, result.memory_digest) == (plain.digest, plain.memory_digest)
        for metric in ("personal_accuracy", "personal_loss"):
            assert result.metrics[f"{metric}_before"] == plain.metrics[metric]
        assert "personal_accuracy_before" not in plain.metrics
        assert plain.traffic.personal == 0
        assert (result.traffic.down, result.traffic.up) == (plain.traffic.down, plain.traffic.up)


def test_a_stage_that_clients_skip_cannot_be_scored() -> None:
    net = linear().nets[0]
    (fault,) = FedKD(private=False, scored_after="public").check_hyperparameters(net, 4)
    assert (fault.path, fault.value) == ("scored_after", "public")
    assert not FedKD(scored_after="public").check_hyperparameters(net, 4)


@pytest.mark.parametrize("name", METHODS)
def test_a_stacked_pool_scores_both_stages(name: str) -> None:
    kind, how = METHODS[name]
    population, algorithm = linear(rounds=2), kind(scored_after="public", **how)
    stacked = scores(algorithm, population, StackedPool(algorithm, population, stack_size=3))
    for ours, theirs in zip(stacked, scores(algorithm, population), strict=True):
        for metric in ("personal_loss", "personal_loss_before"):
            assert ours.metrics[metric] == pytest.approx(theirs.metrics[metric], rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_score_both_stages(workers: int) -> None:
    population = mixed(rounds=2)
    with open_actors(workers) as actor_group:
        for kind, how in METHODS.values():
            algorithm = kind(scored_after="public", **how)
            found = scores(algorithm, population, RayPool(algorithm, population, actor_group))
            expected = scores(algorithm, population)
            assert [result.metrics for result in found] == [result.metrics for result in expected]
            assert [result.traffic for result in found] == [result.traffic for result in expected]
