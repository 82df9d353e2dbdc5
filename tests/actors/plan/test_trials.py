"""Small rounds that foretell large ones: their traffic, their state, their seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest
import torch

from actors.actor_group import ActorGroup
from actors.client_actor import ClientProcess
from actors.device import CUDA_CONTEXT_BYTES, memory_cap
from actors.plan.prober import awaited, size_of
from actors.plan.trials import Trials
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.algorithms import ALGORITHMS, FedAvg, LayerSchedule
from fedsim.core import LocalTraining
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.training.work import client_work
from tests.fedsim.engine.test_server_training import Slow
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick


@pytest.fixture(scope="module")
def crew(ray_cluster: None) -> Iterator[ActorGroup]:
    """Two actors, for every run of this file in turn."""
    made = ActorGroup(Placement(2, 1, 0))
    yield made
    made.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_traffic_of_trials_is_that_of_the_records(crew: ActorGroup, name: str) -> None:
    algorithm, population = quick(name), federation(cohort_size=4)
    trials = Trials(algorithm, population, RayPool(algorithm, population, crew))
    trials.survey(1)
    trials.train(trials.cohorts[0][:3], replace(population.local, steps=1))
    planned = trials.traffic()
    pool = SerialPool(algorithm, population)
    # Of some methods the first round is unlike the others, and the first is what was tried.
    (result,) = simulate(algorithm, population, pool, rounds=1, personal="never")
    assert result.traffic == planned


def test_several_architectures_are_counted_as_they_come(crew: ActorGroup) -> None:
    one, other = federation(cohort_size=10), federation(cohort_size=10, model="logistic")
    population = replace(one, nets=one.nets + other.nets)
    trials = Trials(FedAvg(), population, RayPool(FedAvg(), population, crew))
    trials.warm_up()
    result = next(iter(simulate(FedAvg(), population, SerialPool(FedAvg(), population))))
    assert trials.traffic() == result.traffic


def test_costs_grow_with_the_work_and_the_federation_is_left_as_it_was(crew: ActorGroup) -> None:
    population = federation(cohort_size=6, rounds=2, local=LocalTraining(epochs=30, batch_size=8, lr=0.01))
    pool = RayPool(FedAvg(), population, crew)
    trials = Trials(FedAvg(), population, pool)
    costs = trials.costs(0, 1.0)
    assert costs.of(client_work(population.local, 38)) > costs.of(client_work(population.local, 8)) > 0
    digests = [result.digest for result in simulate(FedAvg(), population, SerialPool(FedAvg(), population))]
    assert [result.digest for result in trials.rounds(60, 1)] == digests
    assert pool.population == population


@pytest.mark.parametrize("name", ["feddisco", "kdia", "moon"])
def test_whole_rounds_begin_as_if_no_trial_had_been(crew: ActorGroup, name: str) -> None:
    """FedDisco's clients tell their labels once, KDIA's teacher loses their last models, MOON has them."""
    algorithm, population = quick(name), federation(cohort_size=4)
    reference = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    trials = Trials(algorithm, population, RayPool(algorithm, population, crew))
    trials.warm_up()
    for cohort in trials.cohorts:
        trials.train(cohort, replace(population.local, steps=1))
    first = replace(reference[0].traffic, personal=0)
    assert trials.traffic() == first
    for found, expected in zip(trials.rounds(600.0, 1), reference, strict=True):
        for what in ("digest", "memory_digest", "traffic", "metrics"):
            assert getattr(found, what) == getattr(expected, what), what


def test_an_evaluation_is_told_from_its_shards(crew: ActorGroup) -> None:
    population = federation()
    trials = Trials(FedAvg(), population, RayPool(FedAvg(), population, crew))
    assert 0 < trials.evaluation(1.0) < 30


@pytest.mark.parametrize(("tests", "held"), [(0, 0), (0, 40), (48, 40)])
def test_an_evaluation_is_foreseen_whichever_set_is_missing(crew: ActorGroup, tests: int, held: int) -> None:
    """Data without a test set, with a validation split and without; and data that has both."""
    whole = federation()
    data = replace(whole.dataset, test=whole.dataset.test.select_rows(slice(tests)))
    assert whole.public is not None
    population = replace(
        whole, dataset=data, validation=whole.public.select_rows(slice(held)) if held else None
    )
    pool = RayPool(FedAvg(), population, crew)
    before = pool.population
    foreseen = Trials(FedAvg(), before, pool).evaluation(1.0)
    assert (foreseen > 0) == bool(tests or held)
    assert pool.population == before


def test_what_the_server_trains_is_told_from_its_beginning(crew: ActorGroup) -> None:
    """A hundred steps of two milliseconds or more, of which a tenth is made, twice."""
    population, method = federation(), Slow()
    assert Trials(method, population, RayPool(method, population, crew)).learn(0.04) >= 0.2
    assert len(method.made) <= 22


def test_a_round_waits_only_for_scores_that_take_longer_than_what_is_done_meanwhile() -> None:
    assert awaited(0, 2, 3) == (2, 3)
    assert awaited(1, 2, 3) == (1, 3)
    assert awaited(4, 2, 3) == (0, 1)
    assert awaited(9, 2, 3) == (0, 0)


def test_the_data_of_a_federation_is_measured() -> None:
    population = federation()
    arrays = (population.dataset.train.x, population.dataset.test.x, population.partition.indices)
    assert sum(array.nbytes for array in arrays) < size_of(population) < 100_000


@pytest.mark.parametrize(
    ("gpus", "cap"),
    [
        (1.0, None),
        (2.0, None),
        (0.25, 20_000_000_000 - CUDA_CONTEXT_BYTES),
        (0.005, 200_000_000),
    ],
)
def test_a_share_of_a_gpu_is_a_share_of_its_memory_with_cudas_own_part(gpus: float, cap: int | None) -> None:
    assert memory_cap(gpus, 80_000_000_000) == cap


def test_actors_of_one_gpu_never_have_more_than_it_has() -> None:
    total = 16_000_000_000
    for share, actors in ((0.5, 2), (0.25, 4), (0.1, 10)):
        cap = memory_cap(share, total)
        assert cap is not None
        assert actors * (cap + CUDA_CONTEXT_BYTES) <= total


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a cap is torch's to keep")
def test_the_cap_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_LOGICAL_GPUS")
    process = ClientProcess(0.1)
    assert process.device_share.cap is not None
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(process.device_share.cap + (64 << 20), dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("order", ["vanilla", "anti"])
def test_what_a_schedule_sends_later_is_foreseen(crew: ActorGroup, order: Literal["vanilla", "anti"]) -> None:
    """fc1, fc2 and fc3 open one after another, each in a third of the rounds."""
    population = federation(layers=3, hidden=6, cohort_size=4, rounds=6)
    algorithm = LayerSchedule(order=order, times="even")
    trials = Trials(algorithm, population, RayPool(algorithm, population, crew))
    results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    sent = [result.traffic.down for result in results]
    for done in range(6):
        last, later = trials.outlook.change(done, 4)
        assert last == {"params": sent[max(0, done - 1)]}
        assert later == {"params": pytest.approx(sum(sent[done:]) / len(sent[done:]))}
    assert trials.outlook.change(6, 4) == 2 * ({"params": sent[5]},)
    assert not trials.outlook.at_most


def test_where_plateaus_decide_all_layers_count_as_open(crew: ActorGroup) -> None:
    """fc1 (78 floats) is open at first; fc2 and fc3 (42 each) may open any time. Also inside a curriculum."""
    population = federation(layers=3, hidden=6, cohort_size=4, rounds=6)
    plateau = LayerSchedule(times="plateau", patience=1, improvement=50.0, tuning_epochs=0)
    for algorithm in (plateau, ClientCurriculum(base=plateau)):
        trials = Trials(algorithm, population, RayPool(algorithm, population, crew))
        assert trials.outlook.at_most
        last, later = trials.outlook.change(0, 4)
        assert (last["params"], later["params"]) == (4 * 4 * 78, 4 * 4 * (78 + 42 + 42))
        assert trials.examination(9.0)[1] == 10 * 4 * (78 + 42 + 42)
    # Measured rounds may have opened some: with a patience of 1, round 3 has two layers.
    trials = Trials(plateau, population, RayPool(plateau, population, crew))
    for result in trials.rounds(600.0, 1):
        last, later = trials.outlook.change(result.round, 4)
        assert last == {"params": result.traffic.down}
        assert later == {"params": 4 * 4 * 162 if result.round < 6 else result.traffic.down}
    assert result.round == 6
