"""Batch normalisation: attacks, compression and rules leave its statistics alone, privacy refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.initial_state import make_initial_state
from fedsim.errors import FedsimError
from fedsim.models.net import InputForm, Net
from fedsim.uploads import AttackedClients, CompressedUpdates, PrivateUpdates, RobustAggregation
from fedsim.uploads.aggregators import Median, NormClipping
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
    found = run(algorithm, population)[0].state.params
    assert len(net.statistics) >= 2
    for key in net.keys:
        is_same = torch.allclose(found[key], plain.state.params[key], rtol=1e-6)
        assert is_same == (key in net.statistics), key


def test_robust_rules_judge_parameters_alone() -> None:
    """The bound of norm clipping is far below the change of the statistics, which are the plain mean."""
    population = normed()
    net, plain = population.nets[0], run(FedAvg(), population)[0]
    method = RobustAggregation(base=FedAvg(), aggregator=NormClipping(max_norm=1e-3))
    begun, found = make_initial_state(method, population).base.params, run(method, population)[0].state.base
    for key in net.statistics:
        torch.testing.assert_close(found.params[key], plain.state.params[key])
    moved = [(found.params[key] - begun[key]).square().sum() for key in net.parameters]
    assert 0 < sum(moved) ** 0.5 <= 1e-3


def test_a_rule_without_shares_combines_the_statistics_too() -> None:
    population = normed()
    net, plain = population.nets[0], run(FedAvg(), population)[0]
    method = RobustAggregation(base=FedAvg(), aggregator=Median())
    found = run(method, population)[0].state.base.params
    for key in net.statistics:
        assert torch.isfinite(found[key]).all()
        assert not torch.allclose(found[key], plain.state.params[key])


def test_privacy_refuses_statistics() -> None:
    with pytest.raises(FedsimError, match="sends statistics of its examples"):
        run(PrivateUpdates(base=FedAvg(), noise_multiplier=1.0), normed())
