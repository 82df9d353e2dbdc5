"""FedBN: FedAvg without BatchNorm, and with it once more by torch's own layers and optimiser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsim.algorithms import FedAvg, FedBN
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base import rng
from fedsim.clients.sampling import draw_batches
from fedsim.core import LocalTraining
from fedsim.models.layers import list_batch_norm_keys
from fedsim.models.net import InputForm, Net
from tests.fedsim.federations import federation
from tests.fedsim.handmade import build_normed
from tests.fedsim.linear_models import run

SIZES = [4, 8, 12, 16, 20]
NORM = {"fc.scaling.weight", "fc.scaling.bias", "fc.scaling.running_mean", "fc.scaling.running_var"}


def test_a_net_without_batch_norm_is_fedavg_bit_for_bit(caplog: pytest.LogCaptureFixture) -> None:
    population = federation(rounds=3, cohort_size=6)
    plain, _ = run(FedAvg(), population)
    results, pool = run(FedBN(), population)
    assert [r.digest for r in results] == [r.digest for r in plain]
    assert [r.traffic.by_payload for r in results] == [r.traffic.by_payload for r in plain]
    assert [r.cost.flops for r in results] == [r.cost.flops for r in plain]
    assert not any(pool.client_states().values())
    assert caplog.messages == ["no model has BatchNorm, so fedbn trains as fedavg does"]


def test_layers_are_found_by_their_type() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.batch_norm_like = nn.GroupNorm(1, 4)
            self.first = nn.BatchNorm2d(4)
            self.second = nn.BatchNorm2d(4, affine=False)
            self.third = nn.BatchNorm2d(4, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            return x

    named = {"weight", "bias", "running_mean", "running_var"}
    keys = {key for key in list_batch_norm_keys(Block()) if not key.endswith("num_batches_tracked")}
    assert keys == {
        *(f"first.{name}" for name in named),
        "second.running_mean",
        "second.running_var",
        "third.weight",
        "third.bias",
    }
    net = Net(build_normed, "normed", inputs=InputForm((12,)))
    assert set(net.keys).intersection(list_batch_norm_keys(net.module)) == NORM


def train_by_hand(population: Any, number: int, client: int, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """A client's round with the module itself and torch.optim.SGD."""
    module, local, data = build_normed(), population.settings.local, population.dataset.train
    module.load_state_dict(params, strict=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=local.lr, momentum=local.momentum)
    held = population.partition.client_positions(client)
    shuffle = rng.stream(population.settings.seed, "shuffle", number, client)
    for rows in draw_batches(shuffle, len(held), local.steps_for(len(held)), local.batch_size):
        x, y = torch.from_numpy(data.x[held[rows]]), torch.from_numpy(data.y[held[rows]])
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return {key: value.detach().clone() for key, value in module.state_dict().items() if key in params}


def test_three_rounds_by_hand() -> None:
    local = LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.5)
    population = federation(SIZES, rounds=3, cohort_size=3, local=local)
    net = Net(build_normed, "normed", inputs=InputForm((12,)))
    population = replace(population, nets=(net,))
    results, pool = run(FedBN(), population)
    shared = {key: value.clone() for key, value in net.init(population.settings.seed).items()}
    initial, own = {key: shared[key] for key in NORM}, dict[int, dict[str, Tensor]]()
    for number, result in enumerate(results):
        models = []
        for client in result.cohort:
            began = {**shared, **own.get(client, initial)}
            models.append(train_by_hand(population, number, client, began))
            own[client] = {key: models[-1][key] for key in NORM}
        for key in shared.keys() - NORM:
            stacked = np.stack([model[key].double().numpy() for model in models])
            mean = np.average(stacked, axis=0, weights=[SIZES[client] for client in result.cohort])
            shared[key] = torch.from_numpy(mean).float()
            torch.testing.assert_close(result.state.params[key], shared[key], rtol=2e-5, atol=2e-6)
        sent = sum(shared[key].numel() for key in shared.keys() - NORM)
        assert result.traffic.up == result.traffic.down == 3 * 4 * sent
    states = pool.client_states()
    assert states.keys() == own.keys()
    for client, expected in own.items():
        assert states[client][PRIVATE_PARAMS].keys() == NORM
        for key, value in expected.items():
            torch.testing.assert_close(states[client][PRIVATE_PARAMS][key], value, rtol=2e-5, atol=2e-6)
