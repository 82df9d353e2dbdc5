"""FedProto: training alone at lambda 0, prototypes once more in torch, several architectures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import FedDistill, FedProto
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.errors import FedsimError
from fedsim.models import make_net
from tests.fedsim.handmade import BODY, HEAD, SETTINGS, Hand, Model, features, plain, small
from tests.fedsim.linear_models import run

CLASSES, WIDTH = 4, 5


def test_without_its_term_every_client_trains_alone_bit_for_bit() -> None:
    """As FedDistill without distillation does; nothing travels."""
    population = small(SETTINGS["momentum"], rounds=3)
    results, pool = run(FedProto(lambda_proto=0.0), population)
    others, alone = run(FedDistill(gamma=0.0), population)
    assert [r.memory_digest for r in results] == [r.memory_digest for r in others]
    assert [r.cost for r in results] == [r.cost for r in others]
    assert {r.traffic.up + r.traffic.down for r in results} == {0}
    assert pool.client_states().keys() == alone.client_states().keys()


class HandProto(Hand):
    """The models stay; the server has the mean of what the clients' bodies make of each class."""

    def __init__(self, population: Any, weight: float) -> None:
        super().__init__(population, ())
        self.weight, self.sent = weight, dict[int, dict[int, Tensor]]()
        self.prototypes: dict[int, Tensor] = {}

    def train(self, number: int, client: int, model: Model) -> Model:
        def local_loss(params: Model, x: Tensor, y: Tensor) -> Tensor:
            total, hidden = plain(params, x, y), features(params, x)
            for row, label in enumerate(y.tolist()):
                if label in self.prototypes:
                    distance = F.mse_loss(hidden[row], self.prototypes[label])
                    total = total + self.weight * distance / len(y)
            return total

        trained = self.sgd(model, self.rows(number, client), (*BODY, *HEAD), local_loss)
        held, data = self.population.partition.client_positions(client), self.population.dataset.train
        hidden, labels = features(trained, torch.from_numpy(data.x[held])), torch.from_numpy(data.y[held])
        self.sent[client] = {int(c): hidden[labels == c].mean(0) for c in labels.unique()}
        return trained

    def round(self, number: int, cohort: Any) -> None:
        self.sent.clear()
        super().round(number, cohort)
        for label in range(CLASSES):
            came = [rows[label] for rows in self.sent.values() if label in rows]
            if came:
                self.prototypes[label] = torch.stack(came).mean(0)


def test_rounds_by_hand_and_their_bytes() -> None:
    population = small(SETTINGS["momentum"], rounds=4, seed=5)
    hand = HandProto(population, 2.5)
    results, pool = run(FedProto(lambda_proto=2.5), population)
    for number, result in enumerate(results):
        hand.round(number, result.cohort)
        for label in range(CLASSES):
            row = result.state.prototypes[label]
            if label in hand.prototypes:
                torch.testing.assert_close(row, hand.prototypes[label], rtol=1e-4, atol=1e-5)
            else:
                assert row.isnan().all()
        assert result.traffic.up == 4 * 4 * CLASSES * WIDTH
        assert result.traffic.down == (4 * 4 * CLASSES * WIDTH if number else 0)
    states = pool.client_states()
    assert states.keys() == hand.own.keys()
    for client, model in hand.own.items():
        for key, value in model.items():
            torch.testing.assert_close(states[client][PRIVATE_PARAMS][key], value, rtol=1e-4, atol=1e-5)


def test_one_client_with_huge_features_does_not_ruin_the_others() -> None:
    """Its numbers are finite, but not the squared distance to them."""
    population = small(SETTINGS["plain"], rounds=3, cohort_size=7)
    x = population.dataset.train.x.copy()
    x[population.partition.client_positions(0)] *= 1e6
    train = replace(population.dataset.train, x=x)
    _, pool = run(FedProto(), replace(population, dataset=replace(population.dataset, train=train)))
    sound = {
        client
        for client, state in pool.client_states().items()
        if all(value.isfinite().all() for value in state[PRIVATE_PARAMS].values())
    }
    assert sound >= set(range(1, 7))


def test_a_class_keeps_its_prototype_while_nobody_holds_it() -> None:
    """Every client holds one class, and one client comes in a round."""
    population = small(SETTINGS["plain"], rounds=4)
    order = np.argsort(population.dataset.train.y, kind="stable")
    sizes = np.bincount(population.dataset.train.y, minlength=CLASSES)
    alone = replace(population.partition, indices=order, offsets=np.concatenate([[0], np.cumsum(sizes)]))
    settings = replace(population.settings, cohort_size=1)
    results, _ = run(FedProto(), replace(population, partition=alone, settings=settings))
    before = torch.full((CLASSES, WIDTH), torch.nan)
    for result in results:
        (label,) = result.cohort
        rows = result.state.prototypes
        others = [c for c in range(CLASSES) if c != label]
        assert torch.equal(rows[others].nan_to_num(-9.0), before[others].nan_to_num(-9.0))
        assert not rows[label].isnan().any()
        before = rows


def several(*hidden: int) -> Any:
    population = small(SETTINGS["plain"], rounds=3)
    shape = {"input_shape": (12,), "num_classes": CLASSES}
    nets = tuple(make_net("mlp", hidden=h, layers=n, **shape) for n, h in enumerate(hidden, start=1))
    return replace(population, nets=nets)


def test_architectures_of_equally_many_features_share_prototypes() -> None:
    population = several(WIDTH, WIDTH)
    results, pool = run(FedProto(), population)
    (*_, last), data, rows = results, population.dataset.train, dict[int, list[Tensor]]()
    assert {client % 2 for client in last.cohort} == {0, 1}
    for client in last.cohort:
        held, net = population.partition.client_positions(client), population.nets[client % 2]
        labels = torch.from_numpy(data.y[held])
        hidden = net.features(pool.client_states()[client][PRIVATE_PARAMS], torch.from_numpy(data.x[held]))
        for label in labels.unique().tolist():
            rows.setdefault(label, []).append(hidden[labels == label].mean(0))
    for label, came in rows.items():
        torch.testing.assert_close(last.state.prototypes[label], torch.stack(came).mean(0))


def test_architectures_of_other_features_are_refused() -> None:
    with pytest.raises(FedsimError, match="their numbers differ: mlp 5, mlp 6"):
        run(FedProto(), several(5, 6))
