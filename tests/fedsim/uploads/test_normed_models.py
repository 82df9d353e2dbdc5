"""Batch normalisation: attacks and compression leave its statistics alone, privacy refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.errors import FedsimError
from fedsim.models.net import InputForm, Net
from fedsim.uploads import AttackedClients, CompressedUpdates, PrivateUpdates
from fedsim.uploads.attacks import SignFlip
from fedsim.uploads.compressors import TopK
from tests.fedsim.federations import federation
from tests.fedsim.handmade import build_normed
from tests.fedsim.methods import run

ATTACKED = AttackedClients(base=FedAvg(), attack=SignFlip(share=1.0, scale=5.0))
COMPRESSED = CompressedUpdates(base=FedAvg(), compressor=TopK(share=0.1))


def normed() -> Population:
    return replace(federation(rounds=1), nets=(Net(build_normed, "normed", inputs=InputForm((12,))),))


@pytest.mark.parametrize("algorithm", [ATTACKED, COMPRESSED])
def test_statistics_are_those_of_honest_training(algorithm: Algorithm) -> None:
    population = normed()
    net, plain = population.nets[0], run(FedAvg(), population)[0]
    statistics = set(net.keys) - set(net.parameters)
    found = run(algorithm, population)[0].state.params
    assert len(statistics) >= 2
    for key in net.keys:
        is_same = torch.allclose(found[key], plain.state.params[key], rtol=1e-6)
        assert is_same == (key in statistics), key


def test_privacy_refuses_statistics() -> None:
    with pytest.raises(FedsimError, match="sends statistics of its examples"):
        run(PrivateUpdates(base=FedAvg(), noise_multiplier=1.0), normed())
