"""FedLC, FedRS and FedNTD: FedAvg without their terms, and once more in NumPy or torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import FedAvg, FedLC, FedNTD, FedRS
from fedsim.core import Algorithm, Batch
from fedsim.engine.pools import SerialPool
from tests.fedsim.handmade import BODY, HEAD, SETTINGS, SIZES, Hand, Model, features, small
from tests.fedsim.linear_models import run


@pytest.mark.parametrize("algorithm", [FedLC(tau=0.0), FedRS(alpha=1.0), FedNTD(beta=0.0)], ids=repr)
def test_without_their_terms_they_are_fedavg_bit_for_bit(algorithm: Algorithm) -> None:
    population = small(SETTINGS["momentum"])
    plain, _ = run(FedAvg(), population)
    results, _ = run(algorithm, population)
    assert [r.digest for r in results] == [r.digest for r in plain]
    assert [(r.traffic, r.cost) for r in results] == [(r.traffic, r.cost) for r in plain]


def predict(model: Model, x: Tensor) -> Tensor:
    return F.linear(features(model, x), model["head.weight"], model["head.bias"])


class HandSkew(Hand):
    """A local loss of the class counts, the global model's logits, the client's logits and the labels."""

    def __init__(self, population: Any, loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(population, (*BODY, *HEAD))
        self.loss = loss

    def train(self, number: int, client: int, model: Model) -> Model:
        held, received = self.population.partition.client_positions(client), dict(model)
        counts = torch.from_numpy(np.bincount(self.population.dataset.train.y[held], minlength=4)).double()

        def local_loss(params: Model, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(counts, predict(received, x), predict(params, x), y)

        return self.sgd(model, self.rows(number, client), (*BODY, *HEAD), local_loss)


def calibrated(counts: Tensor, teacher: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """FedLC's loss of each example, from the definition: -log of e^(f_y - m_y) over the sum."""
    margins = 0.6 * torch.where(counts > 0, counts, 1e-8) ** -0.25
    raised = (logits.double() - margins).exp()
    return -(raised[torch.arange(len(y)), y] / raised.sum(1)).log().mean()


def restricted(counts: Tensor, teacher: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """FedRS's loss: the logits of missing classes count 0.3 times."""
    columns = [logits[:, c] * (1.0 if counts[c] else 0.3) for c in range(4)]
    return F.cross_entropy(torch.stack(columns, 1), y)


def not_true(counts: Tensor, teacher: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """FedNTD's loss, example by example: beta is 1.5 and tau 2."""
    total = F.cross_entropy(logits, y)
    for row, label in enumerate(y.tolist()):
        others = [c for c in range(4) if c != label]
        p, q = (each[row, others].div(2).softmax(0) for each in (teacher.detach(), logits))
        total = total + 1.5 * (p * (p / q).log()).sum() / len(y)
    return total


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        (FedLC(tau=0.6), calibrated),
        (FedRS(alpha=0.3), restricted),
        (FedNTD(beta=1.5, tau=2.0), not_true),
    ],
    ids=["fedlc", "fedrs", "fedntd"],
)
def test_rounds_by_hand(algorithm: Algorithm, loss: Callable[..., Tensor]) -> None:
    """Clients of 3 to 30 examples, some of which lack a class."""
    population = small(SETTINGS["momentum"], rounds=3, seed=5)
    counts = [
        np.bincount(population.dataset.train.y[population.partition.client_positions(client)], minlength=4)
        for client in range(len(SIZES))
    ]
    assert any(not each.all() for each in counts)
    hand = HandSkew(population, loss)
    results, _ = run(algorithm, population)
    assert any(not counts[client].all() for result in results for client in result.cohort)
    for number, result in enumerate(results):
        hand.round(number, result.cohort)
        for key, value in result.state.params.items():
            torch.testing.assert_close(value, hand.server[key], rtol=1e-4, atol=1e-6)


def test_fedntd_counts_the_pass_of_the_global_model() -> None:
    population = small(SETTINGS["plain"])
    plain, twice = (run(algorithm, population)[0][0].cost for algorithm in (FedAvg(), FedNTD()))
    assert twice.updates == plain.updates
    assert plain.flops < twice.flops < 2 * plain.flops


def test_not_true_distillation_says_nothing_of_two_classes() -> None:
    """The only other class has the probability 1 in both models."""
    population = small(SETTINGS["plain"])
    algorithm, ctx = FedNTD(), population.context(0)
    net = population.nets[0]
    task = SerialPool(algorithm, population).worker.loader.make_task_without_batches(
        algorithm, ctx, 1, {"params": net.init(1)}, {}, None
    )
    batch = Batch(torch.randn(5, 12), torch.tensor([0, 1, 1, 0, 1]))
    params = {key: value[:2] if key in HEAD else value for key, value in net.init(2).items()}
    received = {key: value[:2] if key in HEAD else value for key, value in net.init(1).items()}
    task = task._replace(broadcast={"params": received})
    torch.testing.assert_close(
        algorithm.loss(ctx, task, params, batch), FedAvg().loss(ctx, task, params, batch)
    )
