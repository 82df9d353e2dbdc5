"""The client curriculum: identities first, then who comes, what it costs, and every pool."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import FedAvg, FedProx
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import FLEETS
from fedsim.clock.policies import OverSelection
from fedsim.core import Algorithm, Context, LocalTraining
from fedsim.core.capabilities import CohortSelection
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.curriculum.clients import age_losses
from fedsim.curriculum.pacing import Family, count_open, plan_outer_rounds
from fedsim.curriculum.scores import Order
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.samplers import CohortSampling
from fedsim.samplers.availability import Availability
from jobs.spec import JobSpec
from tests.fedsim.curriculum.test_data import METHODS, method
from tests.fedsim.federations import federation
from tests.fedsim.methods import each_with_one

UNEVEN = [10, 12, 14, 16, 18, 20, 22, 24, 26, 30]


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


@pytest.mark.parametrize(
    ("name", "how"),
    each_with_one(
        [name for name in METHODS if not isinstance(method(name), CohortSelection)],
        [{"b": 1.0}, {"a": 0.0}, {"b": 1.0, "scores": "kept"}],
    ),
)
def test_with_everybody_in_it_is_random_sampling_bit_for_bit(name: str, how: Any) -> None:
    population = federation(cohort_size=4, rounds=4)
    plain = run(method(name), population)
    wrapped = run(ClientCurriculum(base=method(name), **how), population)
    assert [r.cohort for r in wrapped] == [r.cohort for r in plain]
    assert [digest(r.state.base) for r in wrapped] == [r.digest for r in plain]
    assert [r.metrics for r in wrapped] == [r.metrics for r in plain]
    if "scores" not in how:
        assert [r.traffic for r in wrapped] == [r.traffic for r in plain]


@pytest.mark.parametrize("order", ["curriculum", "anti"])
def test_cohorts_come_from_the_first_k_of_t(order: Any) -> None:
    """Ranked by NumPy from the model before each round."""
    population = federation(UNEVEN, cohort_size=2, rounds=8, model="logistic")
    algorithm = ClientCurriculum(base=FedAvg(), order=order, a=0.8, b=0.3)
    results = run(algorithm, population)
    data, params = population.dataset.train, population.nets[0].init(population.settings.seed)
    open_clients = count_open("linear", 0.8, 0.3, 10, np.arange(8) / 8, least=2).tolist()
    assert open_clients == [3, 4, 5, 6, 7, 8, 9, 10]
    for number, result in enumerate(results):
        losses = []
        for client in range(10):
            rows = population.partition.client_positions(client)
            logits = data.x[rows].astype(np.float64) @ params["head.weight"].double().numpy().T
            logits += params["head.bias"].double().numpy()
            losses.append((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), data.y[rows]]).mean())
        ranking = np.argsort(losses if order == "curriculum" else -np.array(losses))
        ready = sorted(ranking[: open_clients[number]].tolist())
        draw = rng.stream(population.settings.seed, "cohort", number).choice(len(ready), 2, replace=False)
        assert result.cohort == tuple(sorted(ready[i] for i in draw))
        told = result.method["client_curriculum"]
        assert told["open_clients"] == open_clients[number]
        if open_clients[number] < 10:
            assert told["mean_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
            np.testing.assert_allclose(result.state.losses.numpy(), losses, rtol=1e-5)
        params = result.state.params


def test_asking_is_counted_and_nobody_is_asked_in_vain() -> None:
    population = federation(UNEVEN, cohort_size=2, rounds=4)
    size = 4 * population.nets[0].count_parameters()
    survey = 10 * (size + 4)
    asked = run(ClientCurriculum(base=FedAvg(), a=0.5), population)
    assert [r.traffic.by_payload.get("survey", 0) for r in asked] == [survey, survey, 0, 0]
    assert asked[0].traffic.down == 12 * size
    assert asked[0].traffic.up == 2 * size + 10 * 4
    assert asked[0].seconds["survey"] > 0
    never = run(ClientCurriculum(base=FedAvg(), order="random"), population)
    assert all("survey" not in r.traffic.by_payload and r.seconds["survey"] == 0 for r in never)
    assert never[0].method["client_curriculum"]["mean_loss"] is None


def test_only_clients_that_are_online_are_asked() -> None:
    population = federation(UNEVEN, cohort_size=2, rounds=3)
    sampler = Availability(lowest=0.0)
    online = [np.flatnonzero(sampler.find_online(population.context(number))) for number in range(3)]
    method = ClientCurriculum(base=CohortSampling(base=FedAvg(), sampler=sampler), a=1.0)
    heard = np.full(10, -1)
    for number, result in enumerate(run(method, population)):
        size = 4 * population.nets[0].count_parameters()
        assert result.traffic.by_payload["survey"] == len(online[number]) * (size + 4)
        heard[online[number]] = number
        assert result.state.heard.tolist() == heard.tolist()
        assert torch.equal(result.state.losses.isnan(), result.state.heard < 0)
    assert 0 < len(online[0]) < 10


def test_all_mini_batches_come_before_clients_are_ranked_again() -> None:
    population = federation(UNEVEN, cohort_size=3, rounds=9)
    results = run(ClientCurriculum(base=FedAvg(), a=1.0, b=0.7, batches="all"), population)
    asked = ["survey" in r.traffic.by_payload for r in results]
    # t = 0: 7 open, in cohorts of 3, 3, 1; t = 3: 8 open, 3, 3, 2; t = 6: 9 open, 3, 3, 3
    assert asked == [True, False, False] * 3
    assert [len(r.cohort) for r in results] == [3, 3, 1, 3, 3, 2, 3, 3, 3]
    for start, count in ((0, 7), (3, 8), (6, 9)):
        came = [client for r in results[start : start + 3] for client in r.cohort]
        assert len(set(came)) == len(came) == count
        losses = results[start].state.losses.numpy()
        assert set(came) == set(np.argsort(losses)[:count].tolist())


def test_who_is_asked_and_does_not_count_stays_in_the_queue() -> None:
    """Of six that are asked, the three fastest count; all ten come once before anybody comes again."""
    population = federation(UNEVEN, cohort_size=3, rounds=4)
    devices = Devices(fleet=FLEETS["phones"](), policy=OverSelection(factor=2))
    method = ClientCurriculum(base=FedAvg(), a=0.8, b=1.0, batches="all")
    pool = SerialPool(method, population)
    came = [client for r in simulate(method, population, pool, devices=devices) for client in r.cohort]
    assert sorted(came) == list(range(10))


def test_together_the_open_clients_are_one_cohort_and_participation_grows() -> None:
    population = federation(UNEVEN, cohort_size=3, rounds=6)
    results = run(ClientCurriculum(base=FedAvg(), a=0.8, b=0.2, batches="together"), population)
    expected = count_open("linear", 0.8, 0.2, 10, np.arange(6) / 6, 3).tolist()
    assert [len(r.cohort) for r in results] == expected == [3, 3, 5, 7, 8, 10]
    for result, count in zip(results, expected, strict=True):
        if count < 10:
            losses = result.state.losses.numpy()
            assert set(result.cohort) == set(np.argsort(losses)[:count].tolist())


def test_together_with_everybody_open_it_is_full_participation_bit_for_bit() -> None:
    few = federation(UNEVEN, cohort_size=3, rounds=3)
    whole = federation(UNEVEN, cohort_size=10, rounds=3)
    plain = run(FedAvg(), whole)
    wrapped = run(ClientCurriculum(base=FedAvg(), b=1.0, batches="together"), few)
    assert [digest(r.state.base) for r in wrapped] == [r.digest for r in plain]


def test_outer_rounds_pace_over_the_rankings() -> None:
    """2, 6, 10 and 10 of ten clients in mini-batches of two: 1 + 3 + 5 + 5 rounds, four of the paper's."""
    population = federation(UNEVEN, cohort_size=2, rounds=14)
    method = ClientCurriculum(base=FedAvg(), a=0.5, b=0.2, batches="all", pace="outer")
    results = run(method, population)
    counts = count_open("linear", 0.5, 0.2, 10, np.arange(4) / 4, 2).tolist()
    assert counts == [2, 6, 10, 10]
    start = 0
    for count in counts:
        mine = results[start : start + count // 2]
        came = [client for r in mine for client in r.cohort]
        assert len(set(came)) == len(came) == count
        assert {r.method["client_curriculum"]["open_clients"] for r in mine} == {count}
        assert ["survey" in r.traffic.by_payload for r in mine] == [count < 10] + [False] * (len(mine) - 1)
        start += count // 2
    assert start == 14
    for rounds in (1, 5, 100):
        starts = plan_outer_rounds("quadratic", 0.8, 0.1, 50, 5, rounds)
        batches = -(-count_open("quadratic", 0.8, 0.1, 50, np.arange(len(starts)) / len(starts), 5) // 5)
        assert starts.tolist() == [0, *np.cumsum(batches)[:-1].tolist()]
        assert len(starts) == 1 or batches.sum() <= rounds


def test_a_pace_that_does_not_suit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs batches='all'"):
        ClientCurriculum(base=FedAvg(), pace="outer")


def test_kept_scores_are_what_the_cohorts_said() -> None:
    population = federation(UNEVEN, cohort_size=3, rounds=6, model="logistic")
    algorithm = ClientCurriculum(base=FedAvg(), scores="kept", b=0.3)
    results = run(algorithm, population)
    known: dict[int, tuple[float, int]] = {}
    pool, params = SerialPool(algorithm, population), population.nets[0].init(population.settings.seed)
    for number, result in enumerate(results):
        models = {"0": params}
        for client in result.cohort:
            known[client] = (pool.worker.measure_losses(number, models, [client])[0], number)
        losses, heard = result.state.losses.numpy(), result.state.heard.numpy()
        assert {client for client in range(10) if not np.isnan(losses[client])} == known.keys()
        for client, (loss, when) in known.items():
            assert losses[client] == pytest.approx(loss, rel=1e-5)
            assert heard[client] == when
        assert result.traffic.by_payload["survey"] == 3 * 4
        params = result.state.params


def test_kept_losses_move_towards_the_mean_as_they_grow_old() -> None:
    losses = np.array([1.0, 3.0, np.nan, 5.0, np.nan], np.float32)
    heard = np.array([4, 2, -1, 4, 4])
    found = age_losses(losses, heard, 4, half_life=2.0)
    # the mean of what is known is 3; client 2 never came; client 4 came, and holds nothing
    np.testing.assert_allclose(found, [1.0, 3.0, 3.0, 5.0, np.nan])
    later = age_losses(losses, heard, 8, half_life=2.0)
    np.testing.assert_allclose(later, [3 - 2 * 0.25, 3.0, 3.0, 3 + 2 * 0.25, np.nan])
    np.testing.assert_array_equal(age_losses(losses, heard, 900, np.inf), [1, 3, 3, 5, np.nan])
    assert (age_losses(np.full(3, np.nan, np.float32), np.full(3, -1), 0, 2.0) == 0).all()


def test_who_holds_nothing_comes_last() -> None:
    population = federation([20, 0, 20, 20], cohort_size=2, rounds=2)
    for order in get_args(Order)[:2]:
        results = run(ClientCurriculum(base=FedAvg(), order=order, b=0.75, a=1.0), population)
        assert 1 not in results[0].cohort


CURRICULA: dict[str, Any] = {
    "all": ClientCurriculum(base=DataCurriculum(base=FedProx(), score="local_loss")),
    "kept": ClientCurriculum(base=DataCurriculum(base=FedProx()), scores="kept", batches="all"),
}


def several(population: Population) -> Population:
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    return replace(population, nets=tuple(make_net(model, **shape) for model in ("mlp", "logistic")))


@pytest.mark.slow
@pytest.mark.parametrize("name", CURRICULA)
def test_both_curricula_with_several_architectures_on_every_pool(name: str, actor_group: ActorGroup) -> None:
    population = several(federation(UNEVEN, cohort_size=4, rounds=5))
    algorithm = CURRICULA[name]
    expected = run(algorithm, population)
    found = list(simulate(algorithm, population, RayPool(algorithm, population, actor_group)))
    assert [r.digest for r in found] == [r.digest for r in expected]
    assert [r.traffic for r in found] == [r.traffic for r in expected]
    assert [r.method for r in found] == [r.method for r in expected]


@pytest.mark.parametrize("name", CURRICULA)
def test_a_curriculum_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    population, algorithm = federation(UNEVEN, cohort_size=3, rounds=6), CURRICULA[name]
    expected = run(algorithm, population)
    pool, kept = SerialPool(algorithm, population), Checkpoints(str(tmp_path), {"algorithm": "it"})
    for result in simulate(algorithm, population, pool, rounds=3):
        kept.note_round(result)
        if result.round == 2:
            kept.save(result, pool, population.settings.rounds)
    checkpoint = kept.load(lambda: algorithm.init_server_state(population.context(0)))
    pool = SerialPool(algorithm, population)
    rest = list(simulate(algorithm, population, pool, resume=checkpoint))
    assert [r.digest for r in rest] == [r.digest for r in expected[2:]]


def test_a_method_that_chooses_its_clients_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Choosy(FedAvg, CohortSelection):
        def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> list[int]:
            return [0]

    with pytest.raises(ValueError, match="Choosy chooses its clients itself"):
        ClientCurriculum(base=Choosy())
    with pytest.raises(ValueError, match="ClientCurriculum chooses its clients itself"):
        ClientCurriculum(base=ClientCurriculum(base=FedAvg()))


def test_easy_clients_come_first_and_the_run_still_learns() -> None:
    population = federation(
        UNEVEN, cohort_size=3, rounds=12, local=LocalTraining(epochs=3, batch_size=8, lr=0.1)
    )
    results = run(ClientCurriculum(base=DataCurriculum(base=FedAvg())), population)
    assert results[-1].metrics["global_accuracy"] > 0.8
    assert not torch.isnan(results[-1].state.losses).any()


def test_the_spec_has_the_names_that_the_science_has() -> None:
    schema = JobSpec.model_json_schema()["$defs"]["ClientCurriculumSection"]["properties"]
    assert tuple(schema["pacing"]["enum"]) == get_args(Family)
    assert tuple(schema["order"]["enum"]) == get_args(Order)
    assert set(schema) - {"expert_epochs"} == {field.name for field in fields(ClientCurriculum)} - {"base"}
