"""Clients that train at once end where they end one by one, whatever the method."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsim import tree
from fedsim.algorithms import ALGORITHMS, FedAvg, FedCL
from fedsim.blocks import cut
from fedsim.company import Together
from fedsim.core import Algorithm, Batch, Context, Local, Report, Visit
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.data.dataset import Examples, Normalise
from fedsim.errors import ClientFailed, SettingsError
from fedsim.faults import Chaos, Faults
from fedsim.local import Trained
from fedsim.models import make_net
from fedsim.net import Net, Params
from fedsim.pools import SerialPool, StackedPool
from fedsim.population import Population
from fedsim.simulation import RoundResult, simulate
from fedsim.stacked import _Loop
from fedsim.widths import width_of

from .federations import federation, partition
from .methods import FREEZING, quick

SIZES = [3, 8, 11, 16, 17, 0, 20, 24]
"""Smaller than a batch of 8, just a batch, not whole batches, and nothing at all."""


@dataclass(frozen=True)
class Double(Normalise):
    """Inputs in double precision."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x).double()


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The number type of everything that is made in a test."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def small(dtype: torch.dtype = torch.float32, **more: Any) -> Population:
    local = Local(epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)
    population = federation(SIZES, **{"rounds": 3, "local": local, **more})
    if dtype == torch.float32:
        return population
    return replace(population, dataset=replace(population.dataset, normalise=Double()))


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in tensors(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in tensors(item)]
    if hasattr(value, "__dataclass_fields__"):
        return [leaf for field in fields(value) for leaf in tensors(getattr(value, field.name))]
    return []


def run(algorithm: Algorithm, population: Population, pool: SerialPool) -> tuple[Any, dict[str, Any]]:
    results = list(simulate(algorithm, population, pool, personal="never", evaluate_every=3))
    return results[-1], {str(client): memory for client, memory in pool.memories().items()}


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Relative to the largest number of each tensor, or to a thousandth where all are smaller."""
    one, other = tensors(found), tensors(expected)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        scale = float(b.double().nan_to_num().abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True)


TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}

UNSTEADY = ("hidden.0.bias", "hidden.1.running_mean")
"""Of a generator that the server trains by Adam: the biases before a normalisation, on which nothing depends,
and the running mean that takes them off again. Their slopes are rounding errors around 0, and Adam makes
whole steps of them."""


def without_unsteady(state: Any) -> dict[str, Any]:
    found = {field.name: getattr(state, field.name) for field in fields(state)}
    generator = tree.leaves(found.get("generator") or {})
    return found | {"generator": {path: leaf for path, leaf in generator if not path.endswith(UNSTEADY)}}


def same_as_one_by_one(
    algorithm: Algorithm, width: int, precision: torch.dtype, population: Population | None = None
) -> RoundResult:
    """The last round, which is the same."""
    population = population or small(precision)
    expected, kept = run(algorithm, population, SerialPool(algorithm, population))
    found, memories = run(algorithm, population, StackedPool(algorithm, population, width))
    stacked = found.engine["stacked"]
    assert stacked["together"] > 0
    # Nothing that could have been stacked was not: who is left is the only one of its kind.
    assert set(stacked["alone"]) <= {"no other loop was like it"}
    steady = without_unsteady if precision == torch.float32 else (lambda state: state)
    close(steady(found.state), steady(expected.state), TOLERANCE[precision])
    assert found.traffic == expected.traffic
    assert memories.keys() == kept.keys()
    close(memories, kept, TOLERANCE[precision])
    return found


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_stacked_clients_end_where_they_end_one_by_one(name: str, precision: torch.dtype) -> None:
    same_as_one_by_one(quick(name), 3, precision)


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
def test_the_same_clients_are_frozen_as_one_by_one(precision: torch.dtype) -> None:
    last = same_as_one_by_one(FedCL(**FREEZING), 3, precision, small(precision, cohort_size=5, rounds=4))
    assert last.method["phase"] == "2 of 2"
    assert len(last.cohort) == 4  # the others are frozen
    assert last.method["newly_frozen"]
    assert last.state.standing.frozen.sum() > 4


@pytest.mark.slow
@pytest.mark.parametrize("precision", [torch.float32, torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("width", [3, 7])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_in_both_precisions_and_widths(name: str, width: int, precision: torch.dtype) -> None:
    same_as_one_by_one(quick(name), width, precision)


CURRICULA = {
    "growing data": DataCurriculum(base=FedAvg()),
    "over the run, by the own model": DataCurriculum(
        base=quick("scaffold"), score="both_loss", budget="global", order="anti"
    ),
    "others at every step": DataCurriculum(base=quick("moon"), order="random", pacing="step"),
    "clients in order": ClientCurriculum(base=quick("fedrep"), scores="kept"),
    "both": ClientCurriculum(base=DataCurriculum(base=quick("fednova"))),
}


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("name", CURRICULA)
def test_curricula_open_the_same_examples_at_the_same_steps(name: str, precision: torch.dtype) -> None:
    same_as_one_by_one(CURRICULA[name], 7, precision, small(precision, cohort_size=6))


def jittered(x: Tensor, generator: torch.Generator) -> Tensor:
    """Augmented: every example by numbers of its own."""
    return x + torch.rand(x.shape, generator=generator, dtype=x.dtype)


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("name", ["fedavg", "pfedme", "per_fedavg"])
def test_falling_rates_and_augmented_examples(name: str, precision: torch.dtype) -> None:
    """Batches that are used again (pFedMe) and in pairs (Per-FedAvg) are augmented as they are one by one."""
    local = Local(epochs=2, batch_size=8, momentum=0.9, weight_decay=0.01, lr_alpha=0.3, round_decay=0.8)
    plain = small(precision, local=local)
    population = replace(plain, dataset=replace(plain.dataset, augment=jittered))
    algorithm = quick(name)
    same_as_one_by_one(algorithm, 4, precision, population)
    one, other = (run(algorithm, each, StackedPool(algorithm, each, 4))[0] for each in (plain, population))
    assert one.digest != other.digest


class Keeping(FedAvg):
    """Clients keep the model that they ended with."""

    stateful = True

    def finish(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        return super().finish(ctx, visit, trained)._replace(memory=dict(trained.params))


def test_a_client_without_steps_keeps_its_parameters_exactly() -> None:
    algorithm, population = Keeping(), small(rounds=1)
    _, memories = run(algorithm, population, StackedPool(algorithm, population, 7))
    first = population.nets[0].init(population.seed)
    assert all(torch.equal(memories[str(SIZES.index(0))][key], first[key]) for key in first)
    assert not torch.equal(memories["0"]["head.weight"], first["head.weight"])


def with_statistics() -> nn.Sequential:
    module = nn.Sequential()
    module.add_module(
        "body", nn.Sequential(nn.Conv2d(1, 2, 5, 4), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    )
    module.add_module("head", nn.Linear(72, 4))
    return module


@pytest.mark.parametrize("together", [True, False])
def test_convolutions_are_stacked_and_running_statistics_are_not(together: bool) -> None:
    rng = np.random.default_rng(0)
    images = Examples(
        rng.integers(0, 256, (24, 1, 28, 28), np.uint8), rng.integers(0, 4, 24).astype(np.int64)
    )
    scale = Normalise(scale=255.0)
    data = replace(small().dataset, train=images, test=images, input_shape=(1, 28, 28), normalise=scale)
    lenet = make_net("lenet5", input_shape=data.input_shape, num_classes=data.num_classes)
    population = replace(
        small(rounds=1, local=Local(epochs=1, batch_size=4, lr=0.05), cohort_size=3),
        dataset=data,
        nets=(lenet if together else Net(with_statistics),),
        partition=partition([3, 5, 9]),
    )
    expected, _ = run(FedAvg(), population, SerialPool(FedAvg(), population))
    found, _ = run(FedAvg(), population, StackedPool(FedAvg(), population, 3))
    if together:
        assert found.engine["stacked"] == {"together": 3, "alone": {}}
        close(found.state, expected.state, 1e-4)
    else:
        why = "BatchNorm keeps running statistics; GroupNorm (norm: group) does not"
        assert found.digest == expected.digest
        assert found.engine["stacked"] == {"together": 0, "alone": {why: 3}}


@pytest.mark.parametrize("many", [1, 2])
def test_several_architectures(many: int) -> None:
    population = small(rounds=2)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    population = replace(
        population, nets=tuple(make_net(name, **shape) for name in ("mlp", "logistic")[:many])
    )
    expected, _ = run(FedAvg(), population, SerialPool(FedAvg(), population))
    found, _ = run(FedAvg(), population, StackedPool(FedAvg(), population, 4))
    close(found.state, expected.state, 1e-4)
    assert found.engine["stacked"]["together"] == 7


@dataclass(frozen=True, kw_only=True)
class Asking(FedAvg):
    """A loss that asks a tensor for its value, which many clients at once cannot answer."""

    def loss(self, ctx: Context, visit: Visit, params: Params, batch: Batch) -> Tensor:
        value = super().loss(ctx, visit, params, batch)
        return value if float(value.detach()) > 0 else 0 * value


def test_a_loss_that_cannot_be_stacked_runs_one_by_one_and_says_so() -> None:
    population = small(rounds=1)
    expected, _ = run(Asking(), population, SerialPool(Asking(), population))
    found, _ = run(Asking(), population, StackedPool(Asking(), population, 8))
    close(found.state, expected.state, 1e-6)
    assert found.engine["stacked"]["together"] == 0
    ((why, loops),) = found.engine["stacked"]["alone"].items()
    assert loops == 7
    assert "vmap" in why


@dataclass(frozen=True, kw_only=True)
class Choosy(FedAvg):
    """The client with 11 examples raises, before its training or in it."""

    when: str = "start"

    def start(self, ctx: Context, visit: Visit) -> Params:
        if self.when == "start" and visit.num_examples == 11:
            raise ZeroDivisionError("eleven")
        return super().start(ctx, visit)

    def correction(self, ctx: Context, visit: Visit) -> Any:
        if self.when == "correction" and visit.num_examples == 11:
            return {}
        return super().correction(ctx, visit)

    def finish(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        if self.when == "finish" and visit.num_examples == 11:
            raise ZeroDivisionError("eleven")
        return super().finish(ctx, visit, trained)


@pytest.mark.parametrize("when", ["start", "correction", "finish"])
def test_an_error_meets_the_client_whose_it_is(when: str) -> None:
    algorithm, population = Choosy(when=when), small(rounds=1)
    threads = threading.active_count()
    with pytest.raises(ClientFailed, match="client 2"):
        run(algorithm, population, StackedPool(algorithm, population, 8))
    assert threading.active_count() == threads
    skipping = StackedPool(algorithm, population, 8, faults=Faults(client_error="skip"))
    found, _ = run(algorithm, population, skipping)
    assert found.failed == (2,)
    serial = SerialPool(algorithm, population, faults=Faults(client_error="skip"))
    close(found.state, run(algorithm, population, serial)[0].state, 1e-4)


def test_clients_that_fail_by_chance_are_tried_again() -> None:
    population, faults = (
        small(rounds=2),
        Faults(client_error="retry", max_retries=9, chaos=Chaos(fail_client=0.4)),
    )
    found, _ = run(FedAvg(), population, StackedPool(FedAvg(), population, 8, faults=faults))
    assert found.engine["client_retries"] > 0
    assert found.digest == run(FedAvg(), population, StackedPool(FedAvg(), population, 8))[0].digest


def test_too_little_memory_halves_the_width_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _Loop.make

    def limited(loop: _Loop, step: int) -> None:
        if len(loop.descents) > 4 and step == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        whole(loop, step)

    population, algorithm = small(), quick("scaffold")
    expected, kept = run(algorithm, population, StackedPool(algorithm, population, 4))
    monkeypatch.setattr("fedsim.stacked._Loop.make", limited)
    pool = StackedPool(algorithm, population, 8)
    found, memories = run(algorithm, population, pool)
    assert (found.digest, found.memory_digest) == (expected.digest, expected.memory_digest)
    assert found.engine == expected.engine
    assert pool.width == 4
    close(memories, kept, 0.0)


@dataclass(frozen=True, kw_only=True)
class Spacious(FedAvg):
    """What a client does outside of its local loop takes more memory than there is for two at once."""

    def finish(self, ctx: Context, visit: Visit, trained: Trained) -> Report:
        if visit.company is not None and visit.num_examples == 11:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().finish(ctx, visit, trained)


@pytest.mark.parametrize("policy", ["fail", "skip", "retry"])
def test_no_client_is_left_out_for_memory_that_fewer_at_once_do_not_need(policy: Any) -> None:
    population, algorithm = small(rounds=1), Spacious()
    pool = StackedPool(algorithm, population, 8, faults=Faults(client_error=policy))
    found, _ = run(algorithm, population, pool)
    assert (found.failed, pool.width) == ((), 1)
    assert found.digest == run(FedAvg(), population, SerialPool(FedAvg(), population))[0].digest


class Played:
    """Recorded work in place of a CUDA graph: it is done when it is played, and not before."""

    made: ClassVar[list[Played]] = []

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.times = work, 0
        self.made.append(self)

    def play(self) -> None:
        self.times += 1
        self.work()


@pytest.mark.parametrize("name", ["scaffold", "per_fedavg", "fedgen", "fedrep"])
def test_steps_that_are_played_are_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 3 examples, batches in pairs and with noise; the odd last one of an epoch is not played."""
    monkeypatch.setattr(Played, "made", [])
    local = Local(epochs=6, batch_size=3, lr=0.05, momentum=0.9)
    population, algorithm = small(rounds=1, local=local), quick(name)
    expected, kept = run(algorithm, population, StackedPool(algorithm, population, 4))
    pool = StackedPool(algorithm, population, 4, recorder=Played)
    found, memories = run(algorithm, population, pool)
    assert (found.digest, found.memory_digest) == (expected.digest, expected.memory_digest)
    close(memories, kept, 0.0)
    assert sum(tape.times for tape in Played.made) > 4


def test_a_falling_rate_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording has the rate of its first step for ever."""
    monkeypatch.setattr(Played, "made", [])
    population = small(rounds=1, local=Local(epochs=9, batch_size=3, lr_alpha=0.1))
    run(FedAvg(), population, StackedPool(FedAvg(), population, 4, recorder=Played))
    assert not Played.made


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(SettingsError, match="0 clients"):
        StackedPool(FedAvg(), small(), 0)


@pytest.mark.parametrize(
    ("clients", "width", "sizes"),
    [
        (10, 3, [3, 3, 3, 1]),
        (10, 7, [5, 5]),
        (3, 8, [3]),
        (0, 4, []),
        (300, 4, [8] * 37 + [4]),
        (130, 1, [3] * 43 + [1]),
    ],
)
def test_blocks_hold_whole_stacks(clients: int, width: int, sizes: list[int]) -> None:
    """10 clients in stacks of at most 7 are two of 5; 75 stacks are more than 64 blocks, so two a block."""
    blocks = cut(range(clients), lambda client: client % 5, width=lambda _: width)
    assert [len(block) for block in blocks] == sizes
    steps = [client % 5 for block in blocks for client in block]
    assert steps == sorted(steps, reverse=True)


def test_a_company_that_is_given_up_leaves_nobody_behind() -> None:
    """Its members end where they wait, whatever they catch."""
    company, ended = Together(lambda descents: 1 / 0), []  # type: ignore[arg-type, return-value]

    def member(number: int) -> int:
        try:
            company.descend(None)  # type: ignore[arg-type]
        except Exception:
            ended.append("caught")
        finally:
            ended.append(number)
        return number

    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        list(company.run([partial(member, number) for number in range(3)]))
    assert ended == [0, 1, 2]
    assert threading.active_count() == threads


def test_a_local_loop_outside_of_its_company_is_refused() -> None:
    with pytest.raises(RuntimeError, match="by nobody in it"):
        Together(lambda descents: []).descend(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "cohort", "batch", "width"),
    [
        ("cuda", 8, 8, 8),
        ("cuda", 1000, 8, 64),
        ("cuda", 8, 10**7, 1),  # a step is enough for a GPU
        ("cpu", 1000, 8, 64),
        ("cpu", 130, 8, 32),  # at least 4 stacks
        ("cpu", 127, 8, 1),  # stacks of 31 gain too little
        ("cpu", 1000, 10**5, 1),  # a step is enough for a CPU
    ],
)
def test_the_automatic_width(device: str, cohort: int, batch: int, width: int) -> None:
    population = small(cohort_size=cohort, local=Local(batch_size=batch))
    assert [width_of(stack, population, device) for stack in ("auto", "off", 5)] == [width, 1, 5]


def test_the_automatic_width_of_models_that_are_large_or_not_known_to_gain() -> None:
    large, still = small(cohort_size=1000, hidden=10**5), small(cohort_size=1000)
    assert width_of("auto", replace(large, local=Local(batch_size=1)), "cpu") == 1
    assert width_of("auto", replace(still, nets=(Net(with_statistics),)), "cpu") == 1
