"""The loss, the score and the metrics of each learning task, again in torch, NumPy and scikit-learn."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from fedsim.data.dataset import Dataset, Examples
from fedsim.errors import DataError
from fedsim.learning_tasks.learning_task import UNKNOWN, LearningTask, Scorer
from fedsim.learning_tasks.metrics import (
    METRICS,
    find_kind,
    find_main_metric,
    find_metric,
    is_lower_better,
)
from fedsim.learning_tasks.score import add_scores
from fedsim.learning_tasks.tasks import (
    LEARNING_TASKS,
    Classification,
    NextToken,
    Regression,
    Segmentation,
    SeveralLabels,
    TargetScale,
)

NAN = float("nan")
SCALE = TargetScale((100.0, -3.0), (50.0, 0.5))


def outputs_and_labels(task: LearningTask, batch: int = 12) -> tuple[Tensor, Tensor]:
    """Random outputs and labels; some labels are unknown where the task has unknown ones."""
    generator = torch.Generator().manual_seed(1)
    shape = {"next_token": (5,), "segmentation": (1, 4, 4)}.get(task.name, (3,))
    outputs = torch.randn(batch, *task.output_shape(shape), generator=generator)
    if task.name == "regression":
        return outputs, torch.randn(outputs.shape, generator=generator) * 50 + 100
    if task.name == "labels":
        y = torch.randint(2, outputs.shape, generator=generator).float()
        y[torch.rand(y.shape, generator=generator) < 0.2] = NAN
        return outputs, y
    places = {"classes": (), "next_token": (5,), "segmentation": (4, 4)}[task.name]
    y = torch.randint(task.num_outputs, (batch, *places), generator=generator)
    if places:
        y[torch.rand(y.shape, generator=generator) < 0.2] = UNKNOWN
    return outputs, y


TASKS = (Classification(3), SeveralLabels(3), Regression(2, SCALE), NextToken(6), Segmentation(4))
EACH = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])


@EACH
def test_padding_does_not_count(task: LearningTask) -> None:
    outputs, y = outputs_and_labels(task)
    mask = (torch.arange(12) < 7).float()
    torch.testing.assert_close(task.loss(outputs, y, mask), task.loss(outputs[:7], y[:7]))
    assert task.loss(outputs, y, torch.zeros(12)) == 0


@EACH
def test_the_loss_of_a_batch_is_that_of_its_score(task: LearningTask) -> None:
    outputs, y = outputs_and_labels(task)
    score = task.score(outputs, y)
    assert float(task.loss(outputs, y)) == pytest.approx(score.loss / score.examples, rel=1e-5)
    losses = task.example_losses(outputs, y)
    assert losses.shape == (12,)
    alone = [task.loss(outputs[[row]], y[[row]]) for row in range(12)]
    torch.testing.assert_close(losses, torch.stack(alone))


@EACH
def test_parts_of_the_test_set_add_up(task: LearningTask) -> None:
    outputs, y = outputs_and_labels(task)
    scorer = Scorer(task, task.metrics)
    whole = scorer.values(scorer.score(outputs, y))
    parts = [scorer.score(outputs[rows], y[rows]) for rows in (slice(0, 1), slice(1, 8), slice(8, 12))]
    assert scorer.values(reduce(add_scores, parts)) == pytest.approx(whole, rel=1e-12)
    assert all(np.isfinite(value) for value in whole.values())


def test_losses_by_hand() -> None:
    outputs, y = outputs_and_labels(TASKS[2])
    scaled = (y - torch.tensor(SCALE.mean)) / torch.tensor(SCALE.std)
    torch.testing.assert_close(TASKS[2].loss(outputs, y), F.mse_loss(outputs, scaled))
    outputs, y = outputs_and_labels(TASKS[3])
    expected = F.cross_entropy(outputs.reshape(-1, 6), y.reshape(-1))
    torch.testing.assert_close(TASKS[3].loss(outputs, y), expected)
    outputs, y = outputs_and_labels(TASKS[4])
    torch.testing.assert_close(TASKS[4].loss(outputs, y), F.cross_entropy(outputs, y))


def measure(task: LearningTask) -> tuple[dict[str, float], Any, Any]:
    """The values of all metrics; outputs and labels as arrays."""
    outputs, y = outputs_and_labels(task, batch=40)
    scorer = Scorer(task, task.metrics)
    return scorer.values(scorer.score(outputs, y)), outputs.double().numpy(), y.numpy()


def test_metrics_of_a_classification_by_scikit_learn() -> None:
    found, outputs, y = measure(Classification(3))
    said = outputs.argmax(1)
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert found["accuracy"] == sklearn_metrics.accuracy_score(y, said)
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(y, said, average="macro"))
    auroc = sklearn_metrics.roc_auc_score(y, shares, multi_class="ovr", average="macro")
    assert found["auroc"] == pytest.approx(auroc, rel=1e-6)


def test_metrics_of_several_labels_by_scikit_learn() -> None:
    found, outputs, y = measure(SeveralLabels(3))
    known = ~np.isnan(y)
    columns = [(y[known[:, each], each], outputs[known[:, each], each]) for each in range(3)]
    f1 = [sklearn_metrics.f1_score(truth, said > 0) for truth, said in columns]
    auroc = [sklearn_metrics.roc_auc_score(truth, said) for truth, said in columns]
    assert found["f1"] == pytest.approx(np.mean(f1))
    assert found["auroc"] == pytest.approx(np.mean(auroc), rel=1e-6)


def test_metrics_of_a_regression_by_scikit_learn() -> None:
    found, outputs, y = measure(Regression(2, SCALE))
    said, y = outputs * SCALE.std + SCALE.mean, y.astype(np.float64)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((said - y) ** 2)))
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(y, said))
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(y, said))


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-6])
def test_r2_has_no_unit(unit: float) -> None:
    outputs, y = outputs_and_labels(Regression(2, TargetScale((0.0, 0.0), (1.0, 1.0))))
    scorer = Scorer(Regression(2, TargetScale((0.0, 0.0), (unit, unit))), ("r2",))
    expected = sklearn_metrics.r2_score(y, outputs)
    assert scorer.values(scorer.score(outputs, y * unit))["r2"] == pytest.approx(expected)


def test_f1_leaves_out_labels_that_do_not_occur() -> None:
    y = torch.tensor([[1.0, 0.0, 0.0, NAN], [0.0, 1.0, 0.0, NAN]])
    scorer = Scorer(SeveralLabels(4), ("f1",))
    assert scorer.values(scorer.score(torch.where(y == 1, 9.0, -9.0), y))["f1"] == 1.0
    nothing = scorer.score(torch.full((2, 4), -9.0), torch.zeros(2, 4))
    assert np.isnan(scorer.values(nothing)["f1"])


def test_metrics_of_positions_by_scikit_learn() -> None:
    found, outputs, y = measure(NextToken(6))
    torch_outputs, torch_y = outputs_and_labels(NextToken(6), batch=40)
    perplexity = F.cross_entropy(torch_outputs.double().transpose(1, 2), torch_y).exp()
    assert found["perplexity"] == pytest.approx(float(perplexity))
    known = y != UNKNOWN
    assert found["accuracy"] == np.mean(outputs.argmax(-1)[known] == y[known])
    found, outputs, y = measure(Segmentation(4))
    known, said = y != UNKNOWN, outputs.argmax(1)
    iou = sklearn_metrics.jaccard_score(y[known], said[known], average="macro")
    assert found["mean_iou"] == pytest.approx(iou, rel=1e-6)


@EACH
def test_a_prediction_that_is_no_number_is_wrong(task: LearningTask) -> None:
    outputs, y = outputs_and_labels(task)
    scorer = Scorer(task, task.metrics)
    found = scorer.values(scorer.score(torch.full_like(outputs, NAN), y))
    for name in ("accuracy", "f1", "mean_iou"):
        assert found.get(name, 0) == 0
    for name in ("rmse", "mae", "perplexity"):
        assert np.isnan(found.get(name, NAN))


def test_metrics_without_a_value() -> None:
    one_class = Scorer(Classification(3), ("auroc",))
    score = one_class.score(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    assert np.isnan(one_class.values(score)["auroc"])
    one_example = Scorer(Regression(1), ("r2", "rmse"))
    found = one_example.values(one_example.score(torch.ones(1, 1), torch.zeros(1)))
    assert np.isnan(found["r2"])
    assert found["rmse"] == 1


def test_every_metric_has_a_direction() -> None:
    assert {name for task in LEARNING_TASKS.values() for name in task.metrics} == set(METRICS)
    lower = {name for name in METRICS if is_lower_better(f"global_{name}")}
    assert lower == {"perplexity", "rmse", "mae"}
    assert is_lower_better("train_loss")
    assert find_kind("global_validation_mean_iou") == "mean_iou"
    assert find_metric("personal_rmse_std") is None
    assert find_metric("open_share") is None
    assert find_main_metric({"global_accuracy": 0.3, "global_perplexity": 9.0}) == "global_perplexity"
    assert find_main_metric({"train_loss": 0.3}) is None


@pytest.mark.parametrize(
    ("task", "y", "message"),
    [
        ("regression", np.zeros((4, 2), np.float32), "1 targets per example"),
        ("regression", np.array([1, NAN, 2, 3], np.float32), "1 targets are not finite"),
        ("next_token", np.zeros((4, 2), np.int64), "the next token at every position"),
        ("segmentation", np.zeros(4, np.int64), "a class for every pixel"),
        ("classes", np.zeros((4, 3), np.int64), "one class per example"),
        ("ranking", np.zeros(4, np.int64), "there is no learning task 'ranking'"),
    ],
)
def test_labels_that_do_not_suit_the_task(task: Any, y: Any, message: str) -> None:
    examples = Examples(np.zeros((4, 3), np.int32), y)
    with pytest.raises(DataError, match=message):
        Dataset("mine", examples, examples, 1, (3,), ("a",), task=task)
