"""Short rounds that foretell a run: its bytes, its state, its seconds."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from actors.actor_group import ActorGroup
from actors.client_actor import ClientProcess
from actors.device import memory_cap
from actors.plan.measure import measure_size
from actors.plan.short_rounds import ShortRounds, time_part
from actors.ray_pool import RayPool
from actors.resources import CUDA_CONTEXT_BYTES, Placement
from fedsim.algorithms import ALGORITHMS, FedAvg, FedGKD, LayerSchedule
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, LocalTraining, Progress, ReducedUpdates, Traffic
from fedsim.core.capabilities import ServerTraining
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, slow_unless_varied


@pytest.fixture(scope="module")
def actor_group(ray_cluster: None) -> Iterator[ActorGroup]:
    """Two actors, for every run of this file in turn."""
    made = ActorGroup(Placement(2, 1, 0))
    yield made
    made.close()


def short_rounds(actor_group: ActorGroup, algorithm: Algorithm, population: Population) -> ShortRounds:
    return ShortRounds(algorithm, RayPool(algorithm, population, actor_group))


def reference(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    """Every round, one client after the other, without models of the clients' own."""
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool, personal="never"))


def sent(results: Sequence[RoundResult], way: str) -> int:
    return sum(getattr(result.traffic, way) for result in results)


@pytest.mark.parametrize("name", slow_unless_varied(ALGORITHMS))
def test_a_short_round_sends_what_the_first_round_sends(actor_group: ActorGroup, name: str) -> None:
    algorithm, population = quick(name), federation(cohort_size=4, rounds=1)
    rounds = short_rounds(actor_group, algorithm, population)
    rounds.time_training(0.1)
    [result] = reference(algorithm, population)
    each, total = rounds.count_run([], 60.0)
    assert total == result.traffic
    assert each + rounds.census == total


def test_several_architectures_are_counted_as_they_come(actor_group: ActorGroup) -> None:
    one, other = federation(cohort_size=10, rounds=1), federation(cohort_size=10, model="logistic")
    population = replace(one, nets=one.nets + other.nets)
    [result] = reference(FedAvg(), population)
    assert short_rounds(actor_group, FedAvg(), population).count_run([], 60.0)[1] == result.traffic


def test_a_large_cohort_is_counted_by_a_few_of_its_clients(actor_group: ActorGroup) -> None:
    population = federation(cohort_size=10, rounds=1)
    rounds = short_rounds(actor_group, FedAvg(), population)
    rounds.sample = rounds.cohorts[0][:3]
    [result] = reference(FedAvg(), population)
    assert rounds.count_run([], 60.0)[1] == result.traffic


FORESEEN: dict[str, Algorithm] = {
    "fedavg": FedAvg(),
    "vanilla": LayerSchedule(order="vanilla", times="even"),
    "anti": LayerSchedule(order="anti", times="even"),
    "fedgkd": FedGKD(),
    "kdia": quick("kdia"),
    "cd2_pfed": quick("cd2_pfed"),
    "clients": ClientCurriculum(base=FedAvg(), a=0.5),
    "ace_pfl": quick("ace_pfl"),
}


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("name", FORESEEN)
def test_a_few_rounds_foretell_what_a_run_sends(actor_group: ActorGroup, name: str, done: int) -> None:
    algorithm, population = FORESEEN[name], federation(layers=3, hidden=6, cohort_size=4, rounds=6)
    results, rounds = reference(algorithm, population), short_rounds(actor_group, algorithm, population)
    run = rounds.run_whole(600.0, 1, "never")
    first = [next(run).traffic for _ in range(done)]
    run.close()
    each, total = rounds.count_run(first, 60.0)
    assert sum(total.by_payload.values()) == pytest.approx(total.down + total.up, abs=9)
    for way in ("down", "up"):
        assert getattr(total, way) == pytest.approx(sent(results, way), rel=0.001), (way, each)


@pytest.mark.parametrize("name", ["feddisco", "kdia", "moon"])
def test_whole_rounds_begin_as_if_no_short_round_had_been(actor_group: ActorGroup, name: str) -> None:
    """FedDisco's clients tell their labels once, KDIA's teacher loses their last models, MOON has them."""
    algorithm, population = quick(name), federation(cohort_size=4)
    expected = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    rounds = short_rounds(actor_group, algorithm, population)
    rounds.time_training(0.5)
    rounds.time_server(0.5)
    for result, other in zip(rounds.run_whole(600.0, 1, "auto"), expected, strict=True):
        for what in ("digest", "memory_digest", "traffic", "metrics"):
            assert getattr(result, what) == getattr(other, what), what


def test_seconds_grow_with_the_work_and_the_federation_is_left_as_it_was(actor_group: ActorGroup) -> None:
    population = federation(cohort_size=6, rounds=2, local=LocalTraining(epochs=30, batch_size=8, lr=0.01))
    rounds = short_rounds(actor_group, FedAvg(), population)
    before = rounds.pool.population
    rounds.time_training(2.0)
    assert rounds.step >= 0 <= rounds.overhead
    rounds.step = 0.001  # a clock on a busy machine may find no difference between rounds
    small, *_, large = sorted(rounds.cohorts[0], key=population.partition.size)
    assert rounds.expect_client(large) > rounds.expect_client(small) > 0
    one, two = (rounds.expect_training(workers, rounds.cohorts) for workers in (1, 2))
    assert rounds.overhead <= two < one
    digests = [result.digest for result in simulate(FedAvg(), population, SerialPool(FedAvg(), population))]
    assert [result.digest for result in rounds.run_whole(60, 1, "auto")] == digests
    assert rounds.pool.population == before


def test_little_time_still_finds_the_seconds_of_a_step(
    actor_group: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first longer rounds take no longer than the shortest, by chance: they must not end the search."""
    local = LocalTraining(epochs=1000, batch_size=8, lr=0.01)
    rounds = short_rounds(actor_group, FedAvg(), federation(cohort_size=6, rounds=2, local=local))

    def train(cohort: Sequence[int], steps: int | None = None) -> tuple[None, float]:
        rounds.set_steps(steps)
        work = rounds.cost_of_busiest(cohort, rounds.workers, rounds.pool.population.count_steps)
        return None, 0.1 + 0.001 * work if work > 20 else 0.1

    monkeypatch.setattr(rounds, "train", train)
    rounds.time_training(0.0)
    assert rounds.step == pytest.approx(0.001, rel=0.1)
    assert rounds.overhead == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_clients_are_dealt_evenly_and_all_wait_for_a_large_one(actor_group: ActorGroup, workers: int) -> None:
    population = federation([10 + client % 7 for client in range(16)])
    rounds, size = short_rounds(actor_group, FedAvg(), population), population.partition.size
    assert rounds.cost_of_busiest(range(16), workers, size) < 1.4 * sum(map(size, range(16))) / workers
    assert rounds.cost_of_busiest(range(16), workers, lambda client: 1000 if client == 3 else 1) >= 1000


@pytest.mark.parametrize(("tests", "held"), [(0, 0), (0, 40), (48, 40), (48, 0)])
def test_an_evaluation_is_timed_whichever_set_is_missing(
    actor_group: ActorGroup, tests: int, held: int
) -> None:
    """Data without a test set, with a validation split and without; and data that has both."""
    whole = federation()
    data = replace(whole.dataset, test=whole.dataset.test.select_rows(slice(tests)))
    assert whole.public is not None
    population = replace(
        whole, dataset=data, validation=whole.public.select_rows(slice(held)) if held else None
    )
    assert (short_rounds(actor_group, FedAvg(), population).time_evaluation(1.0) > 0) == bool(tests or held)


def test_a_part_that_takes_too_long_is_told_from_a_few_of_its_items() -> None:
    runs: list[list[int]] = []

    def run(items: Sequence[int]) -> int:
        runs.append(list(items))
        time.sleep(0.001 * sum(items))
        return len(items)

    taken, outcome = time_part(run, range(1, 101), lambda item: item, 2, 1.0)
    assert (runs, outcome) == ([[50], [50, 51]], 2)
    assert 5.05 <= taken < 10
    taken, outcome = time_part(run, range(1, 11), lambda item: item, 2, 1.0)
    assert (runs[-1], outcome) == ([*range(1, 11)], 10)
    assert 0.055 <= taken < 1
    assert time_part(run, [], lambda item: item, 2, 1.0) == (0.0, None)


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg, ServerTraining):
    """Has the server train a hundred steps of fifty milliseconds for each architecture.

    Attributes:
        made: the steps that were made.
    """

    made: list[int] = field(default_factory=list)

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        """Every step is told."""
        for _ in ctx.nets:
            for step in range(1, 101):
                time.sleep(0.05)
                self.made.append(step)
                yield Progress("this", step, 100)
        return state


@pytest.mark.parametrize("nets", [1, 2])
def test_a_long_training_of_the_server_is_told_from_its_beginning(actor_group: ActorGroup, nets: int) -> None:
    one = federation()
    population, method = replace(one, nets=one.nets * nets), Slow()
    found = short_rounds(actor_group, method, population).time_server(0.1)
    assert 5 * nets <= found["learn"] < 10 * nets
    assert len(method.made) < 40
    assert short_rounds(actor_group, FedAvg(), population).time_server(0.1)["learn"] < 0.01


def test_the_data_of_a_federation_is_measured() -> None:
    population = federation()
    arrays = (population.dataset.train.x, population.dataset.test.x, population.partition.indices)
    assert sum(array.nbytes for array in arrays) < measure_size(population) < 100_000


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


def test_a_run_that_decides_by_plateaus_counts_the_open_layers(actor_group: ActorGroup) -> None:
    """fc1 (78 floats) is open at first; with a patience of 1, round 3 has two layers (42 floats more)."""
    population = federation(layers=3, hidden=6, cohort_size=4, rounds=6)
    plateau = LayerSchedule(times="plateau", patience=1, improvement=50.0, tuning_epochs=0)
    rounds, done = short_rounds(actor_group, plateau, population), list[Traffic]()
    for result in rounds.run_whole(600.0, 1, "auto"):
        done.append(result.traffic)
        if len(done) == 2:
            break
    _, total = rounds.count_run(done, 60.0)
    assert total.down == sum(one.down for one in done) + 4 * 4 * 4 * (78 + 42)
