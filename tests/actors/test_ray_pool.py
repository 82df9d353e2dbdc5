"""The same result on every pool, whatever happens to the actors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from actors.actor_group import ActorGroup
from actors.coordinator import Coordinator
from actors.device import describe_cpu_fallback
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.algorithms import ALGORITHMS, FedAvg, FedBN, FedCL, FedPer, LayerSchedule
from fedsim.base import tree
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.base.tree import Tree
from fedsim.checkpoints.experiment_run import Status
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, Context, LocalTraining, RunSettings
from fedsim.data import Dataset, Examples
from fedsim.engine.evaluation.last_model_averaging import LastModelAveraging
from fedsim.engine.evaluation.model_averaging import ModelAveraging
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import Faults
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import ClientFailed, DoesNotFit, PoolFailed
from fedsim.models import make_net
from fedsim.models.initial_weights import InitialWeights
from fedsim.models.net import Net
from tests.fedsim.federations import federation
from tests.fedsim.handmade import build_normed
from tests.fedsim.methods import FREEZING, Everything, quick, slow_unless_varied
from tests.fedsim.models.own_modules import VECTORS, FunctionalDropout, federation_of

pytestmark = pytest.mark.usefixtures("ray_cluster")


@contextmanager
def ray_pool(
    algorithm: Algorithm, population: Population, workers: int, gpus: float = 0
) -> Iterator[RayPool]:
    pool = RayPool(algorithm, population, ActorGroup(Placement(workers, 0.5, gpus)))
    try:
        yield pool
    finally:
        pool.close()


def serial(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


def same(a: list[RoundResult], b: list[RoundResult]) -> None:
    assert [r.digest for r in a] == [r.digest for r in b]
    assert [r.metrics for r in a] == [r.metrics for r in b]
    assert [r.traffic for r in a] == [r.traffic for r in b]


def same_tree(a: Tree, b: Tree) -> None:
    assert [path for path, _ in tree.leaves(a)] == [path for path, _ in tree.leaves(b)]
    for (path, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True):
        assert torch.equal(x, y), path


def agrees_with_serial(algorithm: Algorithm, population: Population, pool: RayPool) -> list[RoundResult]:
    """The rounds of a run and what its clients keep afterwards are those of one process: these."""
    reference = SerialPool(algorithm, population)
    expected = list(simulate(algorithm, population, reference))
    same(list(simulate(algorithm, population, pool)), expected)
    memories = pool.client_states()
    assert memories.keys() == reference.client_states().keys()
    for client, memory in reference.client_states().items():
        same_tree(memory, memories[client])
    return expected


@pytest.mark.slow
def test_the_same_clients_are_frozen_on_every_pool(actor_group: ActorGroup) -> None:
    method, population = FedCL(**FREEZING), federation(cohort_size=6, rounds=5)
    results = agrees_with_serial(method, population, RayPool(method, population, actor_group))
    assert [len(r.state.standing.frozen.nonzero()) for r in results] == [6, 0, 6, 0, 0]
    assert [len(r.cohort) for r in results] == [6, 4, 6, 4, 6]


def test_clusters_split_in_the_same_way_on_every_pool(actor_group: ActorGroup) -> None:
    method, population = quick("cfl"), federation(rounds=3)  # all clients come, or no cluster splits
    results = agrees_with_serial(method, population, RayPool(method, population, actor_group))
    assert [len(r.method["clusters"]) for r in results] == [1, 2, 3]


def test_clients_keep_the_same_batch_norm_on_every_pool(actor_group: ActorGroup) -> None:
    net = Net(build_normed, "normed", inputs=VECTORS)
    population = replace(federation(cohort_size=8, rounds=3), nets=(net,))
    assert FedBN().private_keys(population.context(0))
    agrees_with_serial(FedBN(), population, RayPool(FedBN(), population, actor_group))


@pytest.mark.parametrize(
    "models", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["one-model", "two-models"]
)
@pytest.mark.parametrize("name", slow_unless_varied([*ALGORITHMS, "everything"]))
def test_digests_do_not_depend_on_the_pool(name: str, models: int, actor_group: ActorGroup) -> None:
    """The two models have equally many features, which FedProto needs."""
    algorithm = Everything() if name == "everything" else quick(name)
    if models > 1 and not algorithm.heterogeneous:
        return
    population = federation(cohort_size=8, rounds=3)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    nets = make_net("mlp", hidden=12, **shape), make_net("mlp", hidden=12, layers=2, **shape)
    population = replace(population, nets=nets[:models])
    agrees_with_serial(algorithm, population, RayPool(algorithm, population, actor_group))


@pytest.mark.parametrize(
    "method",
    [ModelAveraging(base=FedAvg(), last=2), LastModelAveraging(base=FedAvg())],
    ids=["last", "clients"],
)
def test_an_average_of_models_does_not_depend_on_the_pool(method: Algorithm, actor_group: ActorGroup) -> None:
    population = federation(cohort_size=8, rounds=3)
    results = agrees_with_serial(method, population, RayPool(method, population, actor_group))
    assert "average_accuracy" in results[-1].metrics


@pytest.mark.parametrize("workers", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_digests_do_not_depend_on_the_number_of_actors(workers: int) -> None:
    """Of one method that does everything; of every method where there is time for it."""
    population = federation(cohort_size=8, rounds=3)
    with ray_pool(Everything(), population, workers) as pool:
        agrees_with_serial(Everything(), population, pool)


def test_clients_on_fractions_of_gpus() -> None:
    population = federation(rounds=1)
    with ray_pool(FedAvg(), population, 4, gpus=0.5) as pool:
        # 2 GPUs, 4 actors of a half: none is left.
        assert ray.available_resources().get("GPU", 0) == pytest.approx(0, abs=1e-6)
        assert len({actor["pid"] for actor in pool.actor_infos}) == 4
        found = list(simulate(FedAvg(), population, pool))
        same(found, serial(FedAvg(), population))
        # Of logical ones, and the record and the log say so.
        assert [result.engine["device"] for result in found] == ["cpu in the place of a logical GPU"]
        assert "clients train on the CPU" in str(describe_cpu_fallback(pool.actor_infos))


def test_resources_that_are_in_use_are_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ActorGroup(Placement(2, 0.5, 1))
    monkeypatch.setattr("actors.actor_group.PLACEMENT_SECONDS", 1.0)
    try:
        with pytest.raises(DoesNotFit, match=r"1 workers x 0\.5 CPU and 1 GPU did not come free within 1 s"):
            ActorGroup(Placement(1, 0.5, 1))
    finally:
        first.close()


def test_a_killed_actor_is_replaced_and_changes_nothing() -> None:
    population = federation(cohort_size=8, rounds=4)
    expected = serial(Everything(), population)
    with ray_pool(Everything(), population, 2) as pool:
        found = []
        for result in simulate(Everything(), population, pool):
            found.append(result)
            if result.round in (1, 2):
                os.kill(pool.actor_infos[result.round - 1]["pid"], signal.SIGKILL)
        same(found, expected)
        assert sum(result.engine["restarts"] for result in found) >= 1
        assert pool.actor_group.restarts == 2


class Deadly(FedAvg):
    def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> torch.Tensor:
        os._exit(1)


@pytest.mark.slow
def test_a_block_that_kills_every_actor_ends_the_run() -> None:
    population = federation([8, 8], rounds=1)
    pool = RayPool(Deadly(), population, ActorGroup(Placement(1, 0.5, 0)), faults=Faults(max_retries=1))
    try:
        with pytest.raises(PoolFailed, match="died 2 times"):
            list(simulate(Deadly(), population, pool))
    finally:
        pool.close()


class Broken(FedAvg):
    def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> torch.Tensor:
        raise ZeroDivisionError("no examples of class 3")


def test_a_failing_client_is_named_across_processes() -> None:
    population = federation([8, 9], rounds=1)
    with (
        ray_pool(Broken(), population, 1) as pool,
        pytest.raises(ClientFailed, match="client 1 failed in train: ZeroDivisionError") as caught,
    ):
        list(simulate(Broken(), population, pool))
    assert (caught.value.client, caught.value.stage) == (1, "train")


def test_the_coordinator_streams_rounds_and_leaves_nothing_behind() -> None:
    experiment = Experiment(
        algorithm=FedAvg(),
        settings=RunSettings(rounds=3, cohort_size=4, local=LocalTraining(epochs=1, batch_size=16, lr=0.1)),
        num_clients=20,
        dataset=("digits", {}),
        partition=("iid", {}),
        models=(("logistic", {}),),
    )
    population, free = experiment.load_population(), ray.available_resources()["CPU"]
    coordinator: Any = Coordinator.remote(experiment, Placement(2, 0.5, 0))
    stream = coordinator.run.options(num_returns="streaming").remote()
    steps = [ray.get(reference) for reference in stream]
    phases = [step.text for step in steps if isinstance(step, Status)]
    results = [step for step in steps if not isinstance(step, Status)]
    assert "loading digits" in phases
    same(results, serial(FedAvg(), population))
    assert all(result.state is None for result in results)
    model = ray.get(coordinator.get_global_model.remote())
    assert {name: value.shape for name, value in model.items()} == {
        "head.weight": (10, 64),
        "head.bias": (10,),
    }
    assert all(isinstance(value, np.ndarray) for value in model.values())
    ray.kill(coordinator)
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < free:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def where_the_images_are(process: Any) -> tuple[str, int, int]:
    return in_a_file(process.worker.loader.x.data_ptr())


def in_a_file(address: int) -> tuple[str, int, int]:
    """The shared file that lies at an address of this process: its name, its inode and the offset in it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return " ".join(name), int(inode), int(offset, 16) + address - start
    raise LookupError(hex(address))


@pytest.mark.slow
def test_all_actors_of_a_node_read_one_copy_of_the_images() -> None:
    """The images of two actors, and the pool's, lie at the same place of the object store's file."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20_000, 1, 28, 28), np.uint8), rng.integers(0, 4, 20_000)
    population = federation([10] * 20, rounds=1)
    data = Dataset("images", Examples(x, y), Examples(x[:10], y[:10]), 4, (1, 28, 28), tuple("abcd"))
    net = make_net("logistic", input_shape=data.input_shape, num_classes=4)
    population = replace(population, dataset=data, nets=(net,))
    with ray_pool(FedAvg(), population, 2) as pool:
        places = ray.get(
            [actor.__ray_call__.remote(where_the_images_are) for actor in pool.actor_group.actors]
        )
        assert set(places) == {in_a_file(pool.population.dataset.train.x.ctypes.data)}
        assert "plasma" in places[0][0] or "shm" in places[0][0]
        same(list(simulate(FedAvg(), population, pool)), serial(FedAvg(), population))


@pytest.mark.parametrize("order", ["vanilla", "anti"])
def test_closed_blocks_stay_as_they_were_drawn(order: Any, actor_group: ActorGroup) -> None:
    """On every pool, to the last bit, while they open one after another."""
    population = federation(layers=3, hidden=6, rounds=4, cohort_size=4)
    algorithm = LayerSchedule(order=order, times=(0, 1, 3))
    first, blocks = population.nets[0].init(population.settings.seed), population.nets[0].blocks
    found = list(simulate(algorithm, population, RayPool(algorithm, population, actor_group)))
    same(found, serial(algorithm, population))
    assert [len(r.method["open_blocks"]) for r in found] == [1, 2, 2, 3]
    for result in found:
        for block, keys in blocks.items():
            closed = all(torch.equal(result.state.params[key], first[key]) for key in keys)
            assert closed == (block not in result.method["open_blocks"]), (result.round, block)


def test_random_numbers_in_a_forward_pass_are_the_clients_own(actor_group: ActorGroup) -> None:
    """`F.dropout` in a module of the user's own, which no layer shows."""
    population = federation_of(Net(FunctionalDropout, "own", inputs=VECTORS), [12, 20, 9, 15])
    agrees_with_serial(FedAvg(), population, RayPool(FedAvg(), population, actor_group))


def test_workers_begin_from_initial_weights(actor_group: ActorGroup) -> None:
    """FedPer: the heads, which never travel, come from the weights in every process."""
    population, trained = federation(rounds=2), federation().nets[0].init(99)
    population.nets[0].load_weights(InitialWeights(tree.to_numpy(trained)))
    results = agrees_with_serial(FedPer(), population, RayPool(FedPer(), population, actor_group))
    head = {key: results[-1].state.params[key] for key in population.nets[0].head}
    same_tree(head, {key: trained[key] for key in head})


@pytest.mark.slow
def test_workers_train_adapters_beside_the_same_frozen_weights(actor_group: ActorGroup) -> None:
    prepare_torchvision()
    pytest.importorskip("peft")
    population = federation(rounds=2, lora={"r": 2, "target_modules": ["head"]})
    agrees_with_serial(FedAvg(), population, RayPool(FedAvg(), population, actor_group))


def test_a_pool_runs_the_algorithm_for_which_it_was_made(actor_group: ActorGroup) -> None:
    population = federation(rounds=1)
    with pytest.raises(ValueError, match="the pool was made for FedAvg, and is to run FedPer"):
        list(simulate(FedPer(), population, RayPool(FedAvg(), population, actor_group)))
