"""The phases of FedCL around any algorithm: identities, recomputed mixtures, and every pool."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg, FedCL, FedGen, Scaffold
from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.curriculum import DataCurriculum, PhaseCurriculum
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import SpecError
from fedsim.techniques.gaussian_mixtures import draw_from_mixture, fit_mixture
from fedsim.techniques.learning_phases import PhaseSettings
from fedsim.techniques.superloss import SuperLoss
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.federations import federation

PACE: dict[str, Any] = {"levels": (0.3, 0.7), "v": 0.4, "finished": 0.5, "cap": 4, "components": 1}
BASES: dict[str, Algorithm] = {
    "data curriculum": DataCurriculum(base=FedAvg()),
    "scaffold": Scaffold(),
    "fedgen": FedGen(generator_steps=2, generator_batch_size=8),
    "ace_pfl": AcePFL(clusters=2, top_k=2),
}


def people(rounds: int = 8, cohort_size: int = 4, **changes: Any) -> Population:
    return federation(rounds=rounds, cohort_size=cohort_size, **changes)


def run(algorithm: Algorithm, population: Population, pool: Any = None) -> list[RoundResult]:
    return list(simulate(algorithm, population, pool or SerialPool(algorithm, population)))


def test_around_fedavg_it_is_fedcl_without_its_other_parts_bit_for_bit() -> None:
    population = people()
    parts: dict[str, Any] = {"alpha": 0.0, "superloss": False, "average": "cohort", "tau_classes": 4}
    fedcl = run(FedCL(**parts, **PACE), population)
    around = run(PhaseCurriculum(base=FedAvg(), **PACE), population)
    assert [r.cohort for r in around] == [r.cohort for r in fedcl]
    for ours, theirs in zip(around, fedcl, strict=True):
        assert ours.metrics == theirs.metrics
        assert digest(ours.state.standing) == digest(theirs.state.standing)
        assert digest(ours.state.draws) == digest(theirs.state.draws)
        assert ours.method["phases"].items() <= theirs.method.items()
        assert (ours.traffic.down, ours.traffic.by_payload["params"]) == (
            theirs.traffic.down,
            theirs.traffic.by_payload["params"],
        )
    assert {r.method["phases"]["left"] for r in around} >= {"share", None}
    assert any(r.method["phases"]["frozen_clients"] for r in around)


@pytest.mark.parametrize("name", [*list(BASES)[:-1], pytest.param("ace_pfl", marks=pytest.mark.slow)])
def test_without_levels_it_is_the_algorithm_itself(name: str) -> None:
    population, base = people(rounds=2), BASES[name]
    plain, around = (
        run(base, population),
        run(PhaseCurriculum(base=base, levels=(), components=1), population),
    )
    assert [digest(r.state.base) for r in around] == [r.digest for r in plain]
    assert [r.cohort for r in around] == [r.cohort for r in plain]
    sent = 4 * 3 * 4  # four clients, three numbers
    assert [r.traffic.up - p.traffic.up for r, p in zip(around, plain, strict=True)] == [sent, sent]


def test_a_client_sends_the_mixture_of_its_trained_models_difficulties() -> None:
    """The mean of one client is its trained model."""
    population = people(rounds=1, cohort_size=1, model="logistic")
    (result,) = run(PhaseCurriculum(base=FedAvg(), levels=(0.3,)), population)
    (client,) = result.cohort
    rows, train = population.partition.client_positions(client), population.dataset.train
    params = result.state.params
    weights = torch.cat([params["head.weight"], params["head.bias"][:, None]], 1)
    inputs = np.hstack([train.x[rows], np.ones((len(rows), 1))])
    logits = inputs @ weights.double().numpy().T
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), train.y[rows]]
    mixture = fit_mixture(SuperLoss(log(4), 0.5).difficulty(torch.from_numpy(losses)).numpy(), 3)
    stream = rng.stream(population.settings.seed, "difficulty", 0, client)
    draws = draw_from_mixture(mixture, 100, stream).numpy()
    np.testing.assert_allclose(result.state.draws[client].numpy(), draws, rtol=1e-3, atol=1e-5)
    threshold = np.quantile(draws, 0.3, method="inverted_cdf")
    assert result.method["phases"]["threshold"] == pytest.approx(threshold, abs=1e-4)
    others = np.delete(result.state.draws.numpy(), client, axis=0)
    assert np.isnan(others).all()


def test_frozen_clients_wait() -> None:
    population = people()
    for before, after in pairwise(run(PhaseCurriculum(base=FedAvg(), **PACE), population)):
        frozen = torch.nonzero(before.state.standing.frozen).flatten().tolist()
        assert not set(frozen) & set(after.cohort)


def test_algorithms_that_choose_their_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="FedCL chooses its clients itself"):
        PhaseCurriculum(base=FedCL())


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    population, algorithm = people(rounds=5), PhaseCurriculum(base=FedAvg(), **PACE)
    expected, pool = run(algorithm, population), SerialPool(algorithm, population)
    kept = Checkpoints(str(tmp_path), {"algorithm": "it"})
    for result in simulate(algorithm, population, pool, rounds=3):
        kept.note_round(result)
        if result.round == 2:
            kept.save(result, pool, population.settings.rounds)
    checkpoint = kept.load(lambda: algorithm.init_server_state(population.context(0)))
    rest = list(simulate(algorithm, population, SerialPool(algorithm, population), resume=checkpoint))
    assert [r.digest for r in rest] == [r.digest for r in expected[2:]]


def test_a_stacked_pool_has_the_same_phases() -> None:
    population, algorithm = people(rounds=4), PhaseCurriculum(base=FedAvg(), **PACE)
    stacked = run(algorithm, population, StackedPool(algorithm, population, stack_size=2))
    serial = run(algorithm, population)
    assert [r.cohort for r in stacked] == [r.cohort for r in serial]
    for ours, theirs in zip(stacked, serial, strict=True):
        np.testing.assert_allclose(ours.state.draws, theirs.state.draws, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_every_pool_of_workers_gives_the_same_rounds(name: str, actor_group: ActorGroup) -> None:
    population, algorithm = people(rounds=4), PhaseCurriculum(base=BASES[name], **PACE)
    found = run(algorithm, population, RayPool(algorithm, population, actor_group))
    expected = run(algorithm, population)
    assert [r.digest for r in found] == [r.digest for r in expected]
    assert [r.traffic for r in found] == [r.traffic for r in expected]


# the spec


def faults(home: Path, **spec: Any) -> list[str]:
    settings = Settings(home=home)
    try:
        resolve_spec(parse_spec({"algorithm": "fedavg", "curriculum": {"phases": {}}, **spec}), settings)
    except SpecError as error:
        return [fault.path for fault in error.errors]
    return []


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ({}, []),
        ({"algorithm": "fedcl"}, ["curriculum.phases"]),
        ({"clients": {"sampler": "oort"}}, ["clients.sampler"]),
        ({"curriculum": {"phases": {}, "clients": {}}}, ["curriculum.phases"]),
        ({"curriculum": {"phases": {"levels": [0.3, 1.0]}}}, ["curriculum.phases.levels.1"]),
        ({"privacy": {"noise_multiplier": 1}}, ["curriculum.phases"]),
    ],
)
def test_what_does_not_go_together_is_refused(spec: dict[str, Any], paths: list[str], tmp_path: Path) -> None:
    assert faults(tmp_path, **spec) == paths


def test_the_spec_has_the_settings_and_older_checkpoints_go_on() -> None:
    schema = JobSpec.model_json_schema()["$defs"]["PhaseCurriculumSection"]["properties"]
    settings = {field.name: field.default for field in fields(PhaseSettings)}
    assert {name: each["default"] for name, each in schema.items()} == {**settings, "levels": [0.3, 0.6, 0.9]}
    assert "phases" not in describe_experiment(parse_spec({"algorithm": "fedavg"}))["curriculum"]
