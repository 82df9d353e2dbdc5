"""Membership inference by the loss: the figures by hand, every pool, and what the members are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.algorithms import FedAvg
from fedsim.clients.population import Population
from fedsim.core import LocalTraining
from fedsim.data.dataset import Examples
from fedsim.engine.membership import attack_by_loss, draw_members
from fedsim.engine.pools import StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation, gaussian_dataset
from tests.fedsim.methods import run

FIGURES = ("auroc", "advantage", "tpr1")


def with_members(population: Population) -> Population:
    data, held = population.dataset, population.partition.indices
    return replace(population, members=draw_members(data.train, held, len(data.test), 7))


def measure(losses: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """The figures by pairs and by thresholds."""
    pairs = losses[:, None] - others[None, :]
    thresholds = np.concatenate([losses, others])
    caught = [(losses <= bound).mean() - (others <= bound).mean() for bound in thresholds]
    quiet = [(losses <= bound).mean() for bound in thresholds if (others <= bound).mean() <= 0.01]
    return (pairs < 0).mean() + (pairs == 0).mean() / 2, max(0.0, *caught), max([0.0, *quiet])


def test_the_figures_by_pairs_and_by_thresholds() -> None:
    draw = np.random.default_rng(0)
    for shift in (-1.0, 0.0, 0.4):
        members, others = draw.normal(size=60).round(1), (draw.normal(size=40) + shift).round(1)
        found = attack_by_loss(members, others)
        assert tuple(found[figure] for figure in FIGURES) == pytest.approx(measure(members, others))


def test_equal_losses_of_members_and_others_are_a_guess() -> None:
    """Its curve is one straight line, of which each point counts."""
    losses = np.linspace(0, 1, 1000)
    assert tuple(attack_by_loss(losses, losses).values()) == pytest.approx((0.5, 0.0, 0.01))


def test_the_figures_of_a_run_in_torch() -> None:
    population = with_members(federation(cohort_size=6, rounds=2))
    plain = run(FedAvg(), replace(population, members=None))
    for result, without in zip(run(FedAvg(), population), plain, strict=True):
        assert result.digest == without.digest
        losses = []
        for examples in (population.members, population.dataset.test):
            assert examples is not None
            logits = population.nets[0](result.state.params, torch.tensor(examples.x)).double()
            losses.append(F.cross_entropy(logits, torch.tensor(examples.y), reduction="none").numpy())
        expected = measure(*losses)
        found = [result.metrics[f"global_membership_{figure}"] for figure in FIGURES]
        assert found == pytest.approx(expected, abs=1e-3)
        assert result.metrics["global_members_loss"] == pytest.approx(losses[0].mean(), rel=1e-5)
        added = {name for name in result.metrics if "member" in name}
        assert {name: value for name, value in result.metrics.items() if name not in added} == without.metrics


def test_a_model_that_learns_by_heart_gives_its_members_away() -> None:
    """Random labels can only be learned by heart."""
    population = federation(
        [20] * 4, model="mlp", hidden=256, rounds=30, local=LocalTraining(epochs=5, batch_size=10, lr=0.3)
    )
    data = population.dataset
    labels = np.random.default_rng(1).permuted(data.train.y)
    data = replace(data, train=Examples(data.train.x, labels))
    first, *_, last = run(FedAvg(), with_members(replace(population, dataset=data)))
    assert last.metrics["global_membership_advantage"] > 0.4
    assert first.metrics["global_membership_advantage"] < last.metrics["global_membership_advantage"]


def test_stacks_and_architectures() -> None:
    population, method = with_members(federation(cohort_size=6, rounds=2)), FedAvg()
    data = population.dataset
    nets = tuple(make_net(kind, input_shape=data.input_shape, num_classes=4) for kind in ("mlp", "logistic"))
    population = replace(population, nets=nets)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(run(method, population), stacked, strict=True):
        for name in ("global_membership", "global_membership_0", "global_membership_1"):
            for figure in FIGURES:
                value = other.metrics[f"{name}_{figure}"]
                assert one.metrics[f"{name}_{figure}"] == pytest.approx(value, abs=0.03)


def test_members_are_examples_that_clients_hold() -> None:
    train = gaussian_dataset().train
    held = np.arange(10, 40)
    assert len(draw_members(train, held, 100, 0)) == 30
    drawn = draw_members(train, held, 12, 0)
    rows = [int(np.flatnonzero((train.x == x).all(1))[0]) for x in drawn.x]
    assert len(set(rows)) == 12
    assert set(rows) <= set(held.tolist())
