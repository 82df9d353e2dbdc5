"""The mean of all clients' last models: KDIA's teacher, NumPy's sum, on every pool and after restarts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, KDIA, FedAvg, FedDF, FedEnsemble, FedPer, Scaffold
from fedsim.base.digest import digest
from fedsim.core import Algorithm
from fedsim.curriculum import DataCurriculum
from fedsim.engine.evaluation.last_model_averaging import LastModelAveraging
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError
from fedsim.models import make_net
from fedsim.techniques.last_models import MeanKind
from tests.fedsim.federations import federation, public_examples
from tests.fedsim.methods import quick, run

DEPLOYING = sorted(name for name, kind in ALGORITHMS.items() if kind.deploys_models)


@pytest.mark.parametrize("weights", ["geometric", "arithmetic", "interval", "count", "volume"])
def test_around_fedavg_it_is_the_teacher_of_kdia_without_distillation(weights: MeanKind) -> None:
    population = federation(cohort_size=4, rounds=5)
    control = run(KDIA(lambda_kd=0.0, lambda_gen=0.0, weights=weights), population)
    for one, other in zip(
        run(LastModelAveraging(base=FedAvg(), weights=weights), population), control, strict=True
    ):
        assert one.metrics["average_loss"] == other.metrics["teacher_loss"]
        assert digest({"model": one.state.params}) == digest({"model": other.state.params})
        assert one.traffic == other.traffic


def average(cohorts: list[Collection[int]], models: Mapping[int, Any], examples: list[int]) -> Any:
    """The mean by the geometric mean of the three frequencies over all clients, in NumPy."""
    total, mass = 0.0, 0.0
    for client, model in models.items():
        rounds = [number for number, cohort in enumerate(cohorts) if client in cohort]
        age = len(cohorts) - 1 - rounds[-1]
        weight = (exp(-age) * len(rounds) * examples[client]) ** (1 / 3)
        total, mass = total + weight * model, mass + weight
    return total / mass


@pytest.mark.parametrize("base", [FedAvg(), Scaffold(), DataCurriculum(base=FedAvg(), score="local_loss")])
def test_the_mean_is_numpys_and_no_round_changes(base: Algorithm) -> None:
    population, method = federation(cohort_size=4, rounds=5), LastModelAveraging(base=base)
    plain, pool = run(base, population), SerialPool(method, population)
    clients, cohorts = population.partition, list[Collection[int]]()
    examples = [clients.size(client) for client in range(clients.num_clients)]
    for at, (expected, result) in enumerate(zip(plain, simulate(method, population, pool), strict=True)):
        cohorts.append(result.cohort)
        assert digest(result.state.base) == digest(expected.state)
        assert {**result.metrics, **expected.metrics} == dict(result.metrics)
        assert result.traffic == expected.traffic
        mean, kept = (
            method.deploy_models(population.context(at), result.state)["average"],
            pool.client_states(),
        )
        for key, value in mean.items():
            models = {client: state["model"][key].double().numpy() for client, state in kept.items()}
            np.testing.assert_allclose(value.numpy(), average(cohorts, models, examples), 1e-5, 1e-7)


@pytest.mark.parametrize("name", DEPLOYING)
def test_any_algorithm_with_a_global_model_is_scored_with_it(name: str) -> None:
    population = federation(cohort_size=4, rounds=2)
    if quick(name).needs_public_set:
        population = replace(population, public=public_examples())
    for result in run(LastModelAveraging(base=quick(name)), population):
        assert np.isfinite(result.metrics["average_loss"])


def test_each_architecture_has_a_mean_of_its_own_clients() -> None:
    """Clients 0, 2, ... have the first architecture; a round without one of them leaves its mean as it is."""
    nets = tuple(make_net("mlp", input_shape=(12,), num_classes=4, hidden=size) for size in (8, 6))
    population = replace(federation(cohort_size=1, rounds=4), nets=nets, public=public_examples())
    base = FedDF(steps=4, batch_size=12, check_every=2, patience=4, lr=0.003)
    method, pool = LastModelAveraging(base=base), SerialPool(LastModelAveraging(base=base), population)
    before: dict[str, Any] = {}
    for at, result in enumerate(simulate(method, population, pool)):
        for number, ctx in population.context(at).architectures.items():
            deployed, states = method.deploy_models(ctx, result.state), pool.client_states().items()
            kept = [state["model"] for client, state in states if client % 2 == int(number)]
            if not kept:
                assert digest(deployed["average"]) == digest(deployed["global"])
            elif len(kept) == 1 or int(number) not in {client % 2 for client in result.cohort}:
                expected = kept[0] if len(kept) == 1 else before[number]
                for key, value in deployed["average"].items():
                    torch.testing.assert_close(value, expected[key])
            before[number] = deployed["average"]
    assert {client % 2 for client in pool.client_states()} == {0, 1}


def test_a_method_of_several_models_is_refused_before_it_trains() -> None:
    method = LastModelAveraging(base=FedEnsemble(mode="permutation", models=2))
    with pytest.raises(FedsimError, match="something else than one model"):
        run(method, federation(cohort_size=4, rounds=1))


def test_it_needs_a_global_model() -> None:
    with pytest.raises(ValueError, match="FedPer deploys no model"):
        LastModelAveraging(base=FedPer())
