"""A client curriculum by an expert's scores: who comes, what it costs, and every pool."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.curriculum import ClientCurriculum
from fedsim.curriculum.pacing import count_open
from fedsim.curriculum.scores import Order
from fedsim.engine.evaluation.model_averaging import ModelAveraging
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import FedsimError
from fedsim.samplers import CohortSampling
from fedsim.samplers.samplers import PowerOfChoice
from tests.fedsim.federations import federation

SIZES = [0, 12, 14, 16, 18, 20, 22, 24, 26, 30]


def scored(rounds: int = 6) -> Population:
    population = federation(SIZES, cohort_size=3, rounds=rounds)
    difficulty = np.random.default_rng(1).random(len(population.dataset.train), dtype=np.float32)
    return replace(population, difficulty=difficulty)


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


def by_expert(base: Algorithm | None = None, **how: object) -> ClientCurriculum:
    return ClientCurriculum(base=base or FedAvg(), scores="expert", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["curriculum", "anti"])
def test_clients_open_in_the_order_of_the_experts_mean_loss(order: Order) -> None:
    population = scored()
    assert population.difficulty is not None
    edges = np.cumsum([0, *SIZES])
    losses = [population.difficulty[a:b].mean() for a, b in pairwise(edges[1:])]
    ranking = [*(1 + np.argsort(losses if order == "curriculum" else -np.array(losses))), 0]
    counts = count_open("linear", 0.8, 0.3, 10, np.arange(6) / 6, 3)
    results = run(by_expert(order=order, b=0.3, batches="together"), population)
    for result, count in zip(results, counts, strict=True):
        assert result.cohort == tuple(sorted(ranking[:count]))
        np.testing.assert_allclose(result.state.losses[1:].numpy(), losses, rtol=1e-6)
        assert result.method["client_curriculum"]["known_clients"] == 9  # client 0 holds no example


def test_clients_send_one_number_before_the_first_round() -> None:
    population = scored()
    asked = run(by_expert(), population)
    assert [result.traffic.by_payload.get("survey", 0) for result in asked] == [40, 0, 0, 0, 0, 0]
    assert all(result.seconds["survey"] == 0 for result in asked)
    chance = run(by_expert(order="random"), replace(population, difficulty=None))
    assert all("survey" not in result.traffic.by_payload for result in chance)


def test_with_everybody_open_it_is_random_sampling_bit_for_bit() -> None:
    population = scored(rounds=2)
    plain, wrapped = run(FedAvg(), population), run(by_expert(b=1.0), population)
    assert [result.cohort for result in wrapped] == [result.cohort for result in plain]
    assert [result.metrics for result in wrapped] == [result.metrics for result in plain]


def test_a_sampler_still_asks_for_the_loss_of_the_global_model() -> None:
    population = scored(rounds=3)
    sampling = CohortSampling(base=FedAvg(), sampler=PowerOfChoice(candidates=4))
    results = run(by_expert(sampling), population)
    size = 4 * population.nets[0].count_parameters()
    asked = [r.traffic.by_payload["survey"] for r in results]
    # Three clients are open in the first round, and the sampler asks as many; then it asks four.
    assert asked == [40 + 3 * (size + 4), 4 * (size + 4), 4 * (size + 4)]


def test_wrappers_around_it_pass_the_losses_on() -> None:
    population = scored(rounds=2)
    averaged = run(ModelAveraging(base=by_expert(), ema=0.5), population)
    assert [r.cohort for r in averaged] == [r.cohort for r in run(by_expert(), population)]


def test_a_population_without_an_expert_is_refused() -> None:
    with pytest.raises(FedsimError, match="need an expert's losses"):
        run(by_expert(), federation(SIZES))


def test_the_order_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    population, algorithm = scored(), by_expert()
    expected, pool = run(algorithm, population), SerialPool(algorithm, population)
    kept = Checkpoints(str(tmp_path), {"algorithm": "it"})
    for result in simulate(algorithm, population, pool, rounds=3):
        kept.note_round(result)
        if result.round == 2:
            kept.save(result, pool, population.settings.rounds)
    checkpoint = kept.load(lambda: algorithm.init_server_state(population.context(0)))
    rest = list(simulate(algorithm, population, SerialPool(algorithm, population), resume=checkpoint))
    assert [r.digest for r in rest] == [r.digest for r in expected[2:]]
    assert [r.cohort for r in rest] == [r.cohort for r in expected[2:]]


def test_a_stacked_pool_selects_the_same_clients() -> None:
    population, algorithm = scored(rounds=3), by_expert()
    stacked = list(simulate(algorithm, population, StackedPool(algorithm, population, stack_size=2)))
    assert [r.cohort for r in stacked] == [r.cohort for r in run(algorithm, population)]


@pytest.mark.slow
def test_every_pool_of_workers_gives_the_same_rounds(actor_group: ActorGroup) -> None:
    population, algorithm = scored(rounds=3), by_expert()
    found = list(simulate(algorithm, population, RayPool(algorithm, population, actor_group)))
    expected = run(algorithm, population)
    assert [r.digest for r in found] == [r.digest for r in expected]
    assert [r.traffic for r in found] == [r.traffic for r in expected]
