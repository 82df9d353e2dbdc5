"""Regression, next-token prediction and segmentation: they learn, alone and in stacks, for every client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.core import Batch, ClientTask, Context, LocalTraining
from fedsim.data import load_dataset
from fedsim.data.federation import make_federation
from fedsim.engine.evaluation.model_selection import choose_better
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import DataNotFound, SpecError
from fedsim.learning_tasks.learning_task import UNKNOWN
from fedsim.models import make_net
from fedsim.models.net import Params
from tests.fedsim.methods import quick
from tests.fedsim.task_federations import FEDERATIONS, next_tokens, task_federation

TASKS = pytest.mark.parametrize("task", FEDERATIONS)
METRICS = {
    "regression": ("rmse", "mae", "r2"),
    "next_token": ("perplexity", "accuracy"),
    "segmentation": ("mean_iou", "accuracy"),
}


@TASKS
def test_stacks_train_as_one_by_one(task: str) -> None:
    population = task_federation(task, metrics=METRICS[task])
    alone = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    stacked = list(simulate(FedAvg(), population, StackedPool(FedAvg(), population, 4)))
    assert stacked[-1].engine["stacked"]["together"] == 4
    for one, other in zip(alone, stacked, strict=True):
        assert dict(one.metrics) == pytest.approx(dict(other.metrics), rel=1e-3, abs=1e-4)


@TASKS
def test_each_client_is_scored_on_its_own_examples(task: str) -> None:
    population = task_federation(task, rounds=1, metrics=METRICS[task])
    result = next(simulate(FedAvg(), population, SerialPool(FedAvg(), population), personal="always"))
    assert result.personal is not None
    rows = result.personal.rows()
    assert set(rows[0]) == {
        "client",
        "tests",
        "loss",
        *("correct" if name == "accuracy" else name for name in METRICS[task]),
    }
    # The clients' test examples together are the test set, and their models are the global model.
    for name in METRICS[task]:
        assert result.metrics[f"personal_{name}"] == pytest.approx(result.metrics[f"global_{name}"])
    loss = sum(row["loss"] * row["tests"] for row in rows) / sum(row["tests"] for row in rows)
    assert result.metrics["personal_loss"] == pytest.approx(loss)


def test_the_worst_clients_have_the_largest_error() -> None:
    population = task_federation("regression", rounds=1)
    result = next(simulate(FedAvg(), population, SerialPool(FedAvg(), population), personal="always"))
    assert result.personal is not None
    errors = [row["rmse"] for row in result.personal.rows()]
    assert result.metrics["personal_rmse_worst10"] == max(errors)
    assert result.metrics["personal_rmse_mean"] == pytest.approx(np.mean(errors))


def test_regression_beats_the_mean_of_the_training_targets() -> None:
    population = task_federation("regression", rounds=8, metrics=("rmse", "r2"))
    train, test = population.dataset.train, population.dataset.test
    trivial = float(np.sqrt(np.mean((test.y - train.y.mean()) ** 2)))
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    assert results[-1].metrics["global_rmse"] < 0.85 * trivial
    assert results[-1].metrics["global_r2"] > 0.3
    assert set(results[-1].metrics) >= {"global_rmse", "global_r2", "global_loss", "train_loss"}
    assert "global_accuracy" not in results[-1].metrics


@dataclass(frozen=True, kw_only=True)
class OwnSquaredError(FedAvg):
    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        return F.mse_loss(ctx.net(params, batch.x), ctx.learning_task.scale_targets(batch.y))


def test_an_own_loss_of_a_regression_learns_scaled_targets() -> None:
    population = task_federation("regression", rounds=1)
    known, own = (
        next(simulate(method, population, SerialPool(method, population)))
        for method in (FedAvg(), OwnSquaredError())
    )
    assert own.metrics["train_loss"] == pytest.approx(known.metrics["train_loss"], rel=1e-6)
    assert own.metrics["global_rmse"] == pytest.approx(known.metrics["global_rmse"], rel=1e-6)


def test_next_token_prediction_beats_the_frequencies_of_the_tokens() -> None:
    population = task_federation("next_token", rounds=4)
    y = population.dataset.test.y
    known = population.dataset.train.y[population.dataset.train.y != UNKNOWN]
    counts = np.bincount(known, minlength=8) + 1
    trivial = np.exp(-np.log(counts / counts.sum())[y[y != UNKNOWN]].mean())
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    assert results[-1].metrics["global_perplexity"] < 0.7 * trivial


def test_a_position_does_not_see_the_next_one() -> None:
    data = next_tokens()
    net = make_net(
        "causal_transformer", input_shape=(12,), num_classes=8, vocabulary=8, outputs=(12, 8), width=16
    )
    x = torch.as_tensor(np.array(data.train.x[:4]))
    changed = x.clone()
    changed[:, 6:] = 1
    params = net.init(0)
    torch.testing.assert_close(net(params, x)[:, :6], net(params, changed)[:, :6])
    assert not torch.equal(net(params, x)[:, 6:], net(params, changed)[:, 6:])


@pytest.mark.weekly
def test_segmentation_beats_an_image_without_shapes() -> None:
    data = load_dataset("shapes", roots=(), examples=300, test_examples=60)
    federation = make_federation(data, "iid", num_clients=4, seed=0)
    small = task_federation("segmentation", rounds=12)
    net = make_net("small_unet", input_shape=(1, 32, 32), num_classes=4, outputs=(4, 32, 32))
    population = replace(small, dataset=data, partition=federation.train, tests=None, nets=(net,))
    local = LocalTraining(epochs=4, batch_size=8, lr=0.1, momentum=0.9)
    population = replace(population, settings=replace(population.settings, local=local))
    background = float(np.mean(data.test.y == 0))
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    # A model that says background everywhere has this IoU for one class of four, and 0 for the others.
    assert results[-1].metrics["global_mean_iou"] > 2 * background / 4


@pytest.mark.slow
def test_next_characters_of_reuters() -> None:
    try:
        data = load_dataset(
            "reuters_characters", roots=(Path.home() / ".fedsim" / "data",), length=32, tests=200, limit=2000
        )
    except DataNotFound as error:
        pytest.skip(str(error))
    counts = np.bincount(data.train.y[data.train.y != UNKNOWN], minlength=data.num_classes) + 1
    y = data.test.y[data.test.y != UNKNOWN]
    trivial = np.exp(-np.log(counts / counts.sum())[y].mean())
    federation = make_federation(data, "iid", num_clients=4, seed=0)
    net = make_net(
        "causal_transformer",
        input_shape=(32,),
        num_classes=data.num_classes,
        vocabulary=data.vocabulary,
        outputs=(32, data.num_classes),
    )
    small = task_federation("next_token", rounds=6)
    local = LocalTraining(steps=40, batch_size=16, lr=0.1, momentum=0.9)
    population = replace(
        small,
        dataset=data,
        partition=federation.train,
        tests=None,
        nets=(net,),
        settings=replace(small.settings, local=local),
    )
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    assert results[-1].metrics["global_perplexity"] < 0.75 * trivial


@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(task, name, marks=[pytest.mark.slow] if task != "regression" else [])
        for task in FEDERATIONS
        for name in ALGORITHMS
        if task in ALGORITHMS[name].tasks
    ],
)
def test_every_method_that_says_so_serves_the_task(task: str, name: str) -> None:
    local = LocalTraining(epochs=1, batch_size=8, lr=0.01)
    population, algorithm = task_federation(task, rounds=2, local=local), quick(name)
    main = population.scorer.metrics[0]
    for result in simulate(algorithm, population, SerialPool(algorithm, population)):
        scored = {metric: value for metric, value in result.metrics.items() if metric.endswith(f"_{main}")}
        assert scored
        assert all(np.isfinite(value) for value in scored.values())


def test_the_final_model_has_the_lowest_error() -> None:
    population = task_federation("regression", rounds=4)
    population = replace(population, validation=population.dataset.train.select_rows(slice(60)))
    best, errors = None, list[float]()
    for result in simulate(FedAvg(), population, SerialPool(FedAvg(), population)):
        best = choose_better(best, FedAvg(), population, result)
        errors.append(result.metrics["global_validation_rmse"])
    assert best is not None
    assert (best.metric, best.value, best.round) == ("rmse", min(errors), 1 + int(np.argmin(errors)))
    assert best.to_text()["validation_rmse"] == repr(min(errors))


def test_examples_without_classes_are_not_dealt_by_class() -> None:
    data = load_dataset("diabetes", roots=())
    with pytest.raises(SpecError) as caught:
        make_federation(data, "dirichlet", num_clients=4, seed=0, beta=0.5)
    (fault,) = caught.value.errors
    assert (fault.path, fault.value) == ("kind", "dirichlet")
    assert fault.hint == "use one of iid, quantity, natural, file, sampled"
    with pytest.raises(SpecError, match="use one of global, merged"):
        make_federation(data, "iid", num_clients=4, seed=0, tests="matched")


def test_a_model_with_outputs_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mlp returns outputs of shape \[4\] .* asks for \[4, 16, 16\]"):
        make_net("mlp", input_shape=(1, 16, 16), num_classes=4, outputs=(4, 16, 16))
    with pytest.raises(ValueError, match=r"small_unet returns outputs of shape \[4, 16, 16\]"):
        make_net("small_unet", input_shape=(1, 16, 16), num_classes=4, outputs=(4,))
