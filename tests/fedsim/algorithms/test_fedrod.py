"""FedROD's balanced loss: classes that a client lacks, several labels per example, labels not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import FedROD
from fedsim.algorithms.personalized.fedrod import ABSENT, PERSONAL_PREFIX, log_label_prior
from fedsim.core import Batch, ClientTask, Context
from fedsim.data.dataset import Examples
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models.net import Params
from tests.fedsim.handmade import BODY, HEAD, SETTINGS, features, small


def rod_step(y: list[int], mask: list[float] | None) -> tuple[Context, ClientTask, Params, Tensor, Any]:
    """FedROD's loss on one batch of a client that holds no class 2, and its gradients."""
    population = small(SETTINGS["plain"])
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    task = SerialPool(algorithm, population).worker.loader.make_task_without_batches(
        algorithm, ctx, 6, down, {}, None
    )
    task = task._replace(label_counts=torch.tensor([20.0, 9.0, 0.0, 1.0]))
    start = {
        key: value.clone().requires_grad_() for key, value in algorithm.initial_params(ctx, task).items()
    }
    x = torch.from_numpy(population.dataset.train.x[: len(y)].copy())
    batch = Batch(x, torch.tensor(y), None if mask is None else torch.tensor(mask))
    loss = algorithm.loss(ctx, task, start, batch)
    gradients = dict(zip(start, torch.autograd.grad(loss, list(start.values())), strict=True))
    return ctx, task, start, loss, gradients


def test_a_class_that_a_client_lacks_stays_finite_and_out_of_the_softmax() -> None:
    """Also in the rows that pad a batch, whose labels may be of that class."""
    _, _, start, loss, gradients = rod_step([0, 1, 3, 0], None)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value).all() for value in gradients.values())
    assert not gradients["head.weight"][2].any()
    assert gradients[PERSONAL_PREFIX + "head.weight"][2].any()  # the plain loss has all classes
    model = {key: value.detach() for key, value in start.items()}
    padded = rod_step([0, 1, 3, 0, 2, 2], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(padded[3], loss)
    for key, value in padded[4].items():
        torch.testing.assert_close(value, gradients[key], rtol=1e-5, atol=1e-7)
    assert set(model) == {*BODY, *HEAD, *(PERSONAL_PREFIX + key for key in HEAD)}


def test_fedrod_with_several_labels_per_example() -> None:
    """Label 0 is yes for 3 of 8 examples, label 1 for none, label 2 for all."""
    population = small(SETTINGS["plain"])
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    task = SerialPool(algorithm, population).worker.loader.make_task_without_batches(
        algorithm, ctx, 1, down, {}, None
    )
    task = task._replace(label_counts=torch.tensor([3.0, 0.0, 8.0, 4.0]))
    assert task.known_counts.tolist() == [8.0] * 4
    y = torch.tensor([[1.0, 0.0, 1.0, float("nan")], [0.0, 0.0, 1.0, 1.0]])
    start = algorithm.initial_params(ctx, task)
    x = torch.from_numpy(population.dataset.train.x[:2].copy())
    logits = F.linear(features(dict(start), x), start["head.weight"], start["head.bias"])
    odds = torch.tensor([np.log(3 / 5), 0.0, 0.0, 0.0], dtype=torch.float32)
    known = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 1]])  # 1 and 2 are certain, and cost nothing
    each = F.binary_cross_entropy_with_logits(logits + odds, y.nan_to_num(), reduction="none")
    balanced = (each * known).sum() / 7
    usual = F.binary_cross_entropy_with_logits(logits, y.nan_to_num(), reduction="none")
    usual = (usual * ~torch.isnan(y)).sum() / 7
    torch.testing.assert_close(algorithm.loss(ctx, task, start, Batch(x, y)), balanced + usual)


def test_labels_that_are_not_known_are_no_noes() -> None:
    """Of client 0's three examples: yes, no, unknown; all unknown; yes and twice unknown; three times no."""
    population = small(SETTINGS["plain"])
    unknown, train = float("nan"), population.dataset.train
    y = np.zeros((len(train), 4), np.float32)
    y[:3] = [[1, unknown, 1, 0], [0, unknown, unknown, 0], [unknown, unknown, unknown, 0]]
    test = Examples(np.zeros((1, *train.x.shape[1:]), np.float32), np.zeros((1, 4), np.float32))
    dataset = replace(population.dataset, train=replace(train, y=y), test=test, task="labels")
    population = replace(population, dataset=dataset)
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    task = SerialPool(algorithm, population).worker.loader.make_task_without_batches(
        algorithm, ctx, 0, down, {}, None
    )
    assert task.label_counts.tolist() == [1, 0, 1, 0]
    assert task.known_counts.tolist() == [2, 0, 1, 3]
    # One yes and one no; nothing known; a yes; three noes.
    assert log_label_prior(task, several=True).tolist() == pytest.approx(
        [0.0, 0.0, -ABSENT, ABSENT - np.log(3)]
    )
    one, other = (
        list(simulate(algorithm, population, pool, evaluate_every=9))[-1].state.params
        for pool in (SerialPool(algorithm, population), StackedPool(algorithm, population, 3))
    )
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-4, atol=1e-5)
