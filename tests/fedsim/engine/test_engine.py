"""The round engine's parts: payloads, memories, local steps, streams, digests, wire, errors, scoring."""

import pickle
from collections.abc import Generator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import isnan
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.algorithms import AFL, FedALA, FedAvg, FedProx
from fedsim.base import rng, tree, wire
from fedsim.base.digest import digest
from fedsim.core import Algorithm, ClientTask, Context, LocalTraining, Progress, ReducedUpdates
from fedsim.core.capabilities import ServerTraining
from fedsim.curriculum import DataCurriculum
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import (
    ClientFailed,
    DataError,
    DoesNotFit,
    FedsimError,
    FieldError,
    MethodFailed,
    NodeLost,
    OutOfMemory,
    ServiceError,
    SpecError,
)
from fedsim.training.local_loop import run_sgd
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything, quick


def test_sum_gather_instructions_and_client_states() -> None:
    population = federation(cohort_size=6, rounds=5)
    algorithm = Everything()
    pool = SerialPool(algorithm, population)
    results = list(simulate(algorithm, population, pool))
    visits = dict.fromkeys(range(10), 0)
    for result in results:
        for client in result.cohort:
            visits[client] += 1
    assert {c: int(m["visits"]) for c, m in pool.client_states().items()} == {
        c: n for c, n in visits.items() if n
    }
    head = 4 * sum(population.nets[0].init(0)[key].numel() for key in population.nets[0].head)
    params = 4 * population.nets[0].count_parameters()
    assert results[0].traffic.by_payload == {
        "params": 2 * 6 * params,
        "greeting": 6 * 4,
        "size": 6 * 4,
        "head": 6 * (head + 4),
    }


def test_client_states_can_be_put_back() -> None:
    population = federation(cohort_size=6, rounds=2)
    pool, other = SerialPool(Everything(), population), SerialPool(Everything(), population)
    list(simulate(Everything(), population, pool))
    other.restore_client_states(pool.client_states())
    assert other.client_states().keys() == pool.client_states().keys()


def test_frozen_keys_do_not_move_and_need_no_gradient() -> None:
    population = federation([20], rounds=1)
    ctx, net = population.context(0), population.nets[0]
    task = SerialPool(FedAvg(), population).worker.loader.make_task(FedAvg(), ctx, 0, {}, {}, {})
    start = net.init(3)

    def loss(params: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        assert [key for key, value in params.items() if value.requires_grad] == ["head.weight", "head.bias"]
        return FedAvg().loss(ctx, task, params, batch)

    before = {key: value.clone() for key, value in start.items()}
    trained = run_sgd(ctx, task, start, loss, trainable=net.head)
    assert trained.params["fc1.0.weight"] is start["fc1.0.weight"]
    assert not torch.equal(trained.params["head.weight"], start["head.weight"])
    assert all(torch.equal(start[key], before[key]) for key in before)
    assert not any(value.requires_grad for value in trained.params.values())


def test_a_correction_is_added_to_every_gradient() -> None:
    population = federation([20], rounds=1, local=LocalTraining(steps=1, batch_size=20, lr=0.5))
    ctx, net = population.context(0), population.nets[0]
    task = SerialPool(FedAvg(), population).worker.loader.make_task(FedAvg(), ctx, 0, {}, {}, {})
    start = net.init(3)

    def loss(params: Any, batch: Any) -> torch.Tensor:
        return FedAvg().loss(ctx, task, params, batch)

    shift = {key: torch.ones_like(value) for key, value in start.items()}
    plain, moved = run_sgd(ctx, task, start, loss), run_sgd(ctx, task, start, loss, correction=shift)
    for key in start:
        torch.testing.assert_close(moved.params[key], plain.params[key] - 0.5)


def test_streams_are_addressed() -> None:
    assert rng.stream(1, "a", 2, 3).integers(1 << 30) == rng.stream(1, "a", 2, 3).integers(1 << 30)
    others = [rng.stream(1, "b", 2, 3), rng.stream(2, "a", 2, 3), rng.stream(1, "a", 3, 2)]
    assert len({int(s.integers(1 << 62)) for s in [rng.stream(1, "a", 2, 3), *others]}) == 4
    before = torch.random.get_rng_state()
    with rng.torch_stream(1, "init"):
        first = torch.rand(3)
    with rng.torch_stream(1, "init"):
        assert torch.equal(first, torch.rand(3))
    assert torch.equal(before, torch.random.get_rng_state())


def test_digests_see_every_bit_and_no_order_of_keys() -> None:
    state = {"a": torch.zeros(2, 3), "b": [1, 2.5, None, "x"]}
    assert digest(state) == digest({"b": [1, 2.5, None, "x"], "a": torch.zeros(2, 3)})
    assert digest(state) != digest({**state, "a": torch.zeros(3, 2)})
    assert digest(state) != digest({**state, "a": torch.full((2, 3), 1e-45)})
    assert digest(state) != digest({**state, "a": torch.zeros(2, 3, dtype=torch.float64)})
    assert digest(torch.arange(6.0).view(2, 3).t()) == digest(torch.tensor([[0.0, 3], [1, 4], [2, 5]]))
    with pytest.raises(TypeError, match="cannot hold set"):
        digest({"a": {1, 2}})


def test_bytes_of_payloads() -> None:
    payload = {"w": torch.zeros(3, 4), "nested": {"counts": torch.zeros(5, dtype=torch.int64)}}
    assert wire.payload_bytes(payload) == 4 * 12 + 4 * 5
    assert wire.payload_bytes({"h": torch.zeros(3, dtype=torch.float16)}) == 6
    assert wire.make_traffic({"a": 3, "b": 1}, {"a": 2}).by_payload == {"a": 5, "b": 1}


def test_borrowed_arrays_share_memory_even_when_read_only() -> None:
    array = np.arange(6.0)
    array.flags.writeable = False
    tensor = tree.wrap_array(array)
    assert tensor.tolist() == list(range(6))
    assert tensor.data_ptr() == array.ctypes.data


def test_trees_of_different_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in their keys"):
        tree.add({"a": torch.zeros(1)}, {"b": torch.zeros(1)})


def test_a_failing_client_is_named() -> None:
    class Broken(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> torch.Tensor:
            raise ZeroDivisionError("no examples of class 3")

    population = federation()
    with pytest.raises(ClientFailed, match=r"client 9 failed in train: ZeroDivisionError: no examples"):
        list(simulate(Broken(), population, SerialPool(Broken(), population)))


def test_a_federation_without_examples_says_so() -> None:
    population = federation([0, 0], rounds=1)
    with pytest.raises(DataError, match="none of the 2 clients holds an example"):
        list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))


@pytest.mark.parametrize(
    ("algorithm", "settings", "paths"),
    [
        (DataCurriculum(base=FedProx(mu=-5.0), a=-1.0), {}, ["DataCurriculum.base.mu", "DataCurriculum.a"]),
        (DataCurriculum(base=FedAvg(), order="easy"), {}, ["DataCurriculum.order"]),  # type: ignore[arg-type]
        (FedALA(layers=99), {}, ["FedALA.layers"]),
        (FedAvg(), {"cohort_size": 50}, ["RunSettings.cohort_size"]),
        (FedAvg(), {"local": LocalTraining(lr=-0.1, batch_size=0)}, ["batch_size", "lr"]),
    ],
)
def test_wrong_values_are_named_before_a_run(
    algorithm: Algorithm, settings: dict[str, Any], paths: list[str]
) -> None:
    population = federation()
    population = replace(population, settings=replace(population.settings, **settings))
    with pytest.raises(SpecError) as caught:
        next(simulate(algorithm, population, SerialPool(algorithm, population)))
    assert [fault.path.removeprefix("RunSettings.local.") for fault in caught.value.errors] == paths


def test_a_run_that_pauses_is_checked_with_all_its_rounds() -> None:
    """A search trains a few rounds first; FedKD refuses as many `local_rounds` as the run has rounds."""
    algorithm, population = replace(quick("fedkd"), local_rounds=3), federation(rounds=5)
    [result] = simulate(algorithm, population, SerialPool(algorithm, population), rounds=1)
    assert result.round == 1


@pytest.mark.parametrize("architectures", [1, 2])
def test_a_round_without_weight_changes_nothing_and_is_told_once(
    architectures: int, caplog: pytest.LogCaptureFixture
) -> None:
    population = federation([0, 20, 0, 20], cohort_size=1, rounds=8)
    nets = (population.nets[0], federation(hidden=5).nets[0])[:architectures]
    population = replace(population, nets=nets)
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    empty = {result.round for result in results if result.cohort[0] in (0, 2)}
    assert 1 < len(empty) < 8
    for before, after in pairwise(results):
        assert (after.digest == before.digest) == (after.round in empty)
    for result in results:
        assert isnan(result.metrics["train_loss"]) == (result.round in empty)
    (said,) = caplog.messages
    assert f"round {min(empty)}: all client weights are 0" in said
    assert said.endswith("data.partition.min_size: 1 gives every client an example")


def test_weights_of_0_of_clients_with_examples_are_those_of_the_algorithm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first client of AFL takes all weight with a large step."""
    population, method = federation(cohort_size=1, rounds=6), AFL(weight_lr=10.0)
    list(simulate(method, population, SerialPool(method, population)))
    (said,) = caplog.messages
    assert "all client weights are 0" in said
    assert said.endswith("The clients have examples, and AFL gives them these weights")


@pytest.mark.parametrize(
    "error",
    [
        FedsimError("m", "h"),
        SpecError([FieldError("a.b", 3, "wrong", "do this")]),
        DoesNotFit("arithmetic", "fewer", value=4),
        ClientFailed(3, "train", "cause", "trace"),
        MethodFailed("FedAvg", "aggregate", "cause", "trace"),
        NodeLost("10.0.0.3", 2, "cause"),
        OutOfMemory("message", "hint"),
        ServiceError("no", "hint", status=409, code="CONFLICT"),
    ],
)
def test_errors_survive_pickling(error: FedsimError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_evaluation_only_when_asked_and_at_the_end() -> None:
    population = federation(rounds=5)
    pool = SerialPool(FedAvg(), population)
    scored = [
        "global_accuracy" in result.metrics
        for result in simulate(FedAvg(), population, pool, evaluate_every=2)
    ]
    assert scored == [False, True, False, True, True]


class Private(FedAvg):
    """Has no model for everybody, and says so only once."""

    deploys_models: ClassVar[bool] = False

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, tree.Tree]:
        raise NotImplementedError


def test_a_method_that_deploys_no_models_is_not_asked_for_them() -> None:
    population = federation(rounds=1)
    (result,) = simulate(Private(), population, SerialPool(Private(), population), personal="never")
    assert set(result.metrics) == {"train_loss"}


class Teaching(FedAvg, ServerTraining):
    """Notes where its server trains, and where its clients do."""

    seen: ClassVar[list[tuple[str, torch.device]]] = []

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        self.seen.append(("server", ctx.device))
        yield Progress("nothing", 1, 1)
        return state

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, tree.Tree]:
        self.seen.append(("scored", ctx.device))
        return super().deploy_models(ctx, state)


def test_the_server_trains_on_the_device_that_it_is_given() -> None:
    population = federation(rounds=1)
    list(simulate(Teaching(), population, SerialPool(Teaching(), population), device="meta"))
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert sorted(set(Teaching.seen), key=str) == sorted([("server", meta), ("scored", cpu)], key=str)
