"""The average of the global models over the rounds: NumPy's, on every pool and after restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedDF, FedPer
from fedsim.base.digest import digest
from fedsim.core import Algorithm
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.evaluation.last_model_averaging import LastModelAveraging
from fedsim.engine.evaluation.model_averaging import ModelAveraging
from fedsim.engine.evaluation.model_selection import choose_better
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation, public_examples
from tests.fedsim.kept import run as run_with_checkpoints
from tests.fedsim.methods import run

KINDS: list[dict[str, Any]] = [{"ema": 0.9}, {"ema": 0.0}, {"last": 3}, {"last": 1}]

AVERAGES = [
    lambda base: ModelAveraging(base=base, ema=0.9),
    lambda base: ModelAveraging(base=base, last=3),
    lambda base: LastModelAveraging(base=base),
]
"""Every average around a method."""


def average(models: list[Any], kind: dict[str, Any]) -> Any:
    """The average after these rounds, in NumPy."""
    if "last" in kind:
        return np.mean(models[-kind["last"] :], 0)
    mean = models[0]
    for model in models[1:]:
        mean = kind["ema"] * mean + (1 - kind["ema"]) * model
    return mean


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounds_are_those_of_the_method_and_the_average_is_numpys(kind: dict[str, Any]) -> None:
    population = federation(cohort_size=4, rounds=6)
    method, test = ModelAveraging(base=FedAvg(), **kind), population.dataset.test
    plain, results = run(FedAvg(), population), run(method, population)
    for at, (expected, result) in enumerate(zip(plain, results, strict=True)):
        assert digest(result.state.base) == digest(expected.state)
        assert {**result.metrics, **expected.metrics} == dict(result.metrics)
        assert result.traffic == expected.traffic
        models = [each.state.params for each in plain[: at + 1]]
        mean = {
            key: torch.from_numpy(average([m[key].double().numpy() for m in models], kind)).float()
            for key in models[0]
        }
        logits = population.nets[0](mean, torch.tensor(test.x))
        loss = float(torch.nn.functional.cross_entropy(logits, torch.tensor(test.y)))
        assert result.metrics["average_loss"] == pytest.approx(loss, rel=1e-5)
        right = float((logits.argmax(-1) == torch.tensor(test.y)).double().mean())
        assert result.metrics["average_accuracy"] == pytest.approx(right)
    if average([0.0, 1.0], kind) == 1.0:
        assert all(r.metrics["average_loss"] == r.metrics["global_loss"] for r in results)
    else:
        assert results[-1].metrics["average_loss"] != results[-1].metrics["global_loss"]


@pytest.mark.parametrize("wrap", AVERAGES)
def test_a_run_that_goes_on_has_the_same_average(
    wrap: Callable[[Algorithm], Algorithm], tmp_path: Path
) -> None:
    population, method = federation(cohort_size=4, rounds=6), wrap(FedAvg())
    expected, _ = run_with_checkpoints(method, population, tmp_path / "whole")
    run_with_checkpoints(method, population, tmp_path / "parts", rounds=3)
    results, _ = run_with_checkpoints(method, population, tmp_path / "parts", resume=True)
    assert [r.digest for r in results] == [r.digest for r in expected[-len(results) :]]
    assert [r.metrics for r in results] == [r.metrics for r in expected[-len(results) :]]


def test_it_is_the_average_of_the_models_that_are_scored() -> None:
    """FedDF's models are trained on the server first; each of two architectures has an average of its own."""
    nets = tuple(make_net("mlp", input_shape=(12,), num_classes=4, hidden=size) for size in (8, 6))
    population = replace(federation(cohort_size=4, rounds=3), nets=nets, public=public_examples())
    base = FedDF(steps=4, batch_size=12, check_every=2, patience=4, lr=0.003)
    method = ModelAveraging(base=base, last=9)
    results, deployed = run(method, population), list[Any]()
    for result in results:
        deployed.append(result.state.base.params)
        assert {"average_accuracy", "average_0_accuracy", "average_1_accuracy"} <= result.metrics.keys()
    for number, ctx in population.context(2).architectures.items():
        mean = method.deploy_models(ctx, results[-1].state)["average"]
        for key, value in mean.items():
            direct = np.mean([models[number][key].double().numpy() for models in deployed], 0)
            np.testing.assert_allclose(value.numpy(), direct, rtol=1e-6)


@pytest.mark.parametrize("wrap", AVERAGES)
def test_stacked_clients_and_curricula_have_the_same_average(wrap: Callable[[Algorithm], Algorithm]) -> None:
    population = federation(cohort_size=4, rounds=4)
    for base in (FedAvg(), ClientCurriculum(base=FedAvg())):
        method = wrap(base)
        alone = run(method, population)
        together = list(simulate(method, population, StackedPool(method, population, 2)))
        for one, other in zip(alone, together, strict=True):
            assert one.metrics["average_loss"] == pytest.approx(other.metrics["average_loss"], rel=1e-4)


def test_validation_may_choose_the_average() -> None:
    population = federation(cohort_size=4, rounds=2)
    split = replace(population, validation=population.dataset.test.select_rows(slice(20)))
    method = ModelAveraging(base=FedAvg(), last=2)
    for result in simulate(method, split, SerialPool(method, split)):
        better = replace(result, metrics={**result.metrics, "average_validation_accuracy": 1.5})
    chosen = choose_better(None, method, split, better)
    assert chosen is not None
    assert chosen.model == "average"
    expected = method.deploy_models(split.context(1), better.state)["average"]
    assert all(torch.equal(value, expected[key]) for key, value in chosen.params.items())


def test_what_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(ValueError, match="either ema"):
        ModelAveraging(base=FedAvg())
    with pytest.raises(ValueError, match="either ema"):
        ModelAveraging(base=FedAvg(), ema=0.5, last=2)
    with pytest.raises(ValueError, match="FedPer deploys no model"):
        ModelAveraging(base=FedPer(), last=2)
