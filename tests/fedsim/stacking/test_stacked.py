"""Clients that train at once end where they end one by one, whatever the method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedsim.algorithms import ALGORITHMS, FedAvg, FedBN, FedCL
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.engine.blocks import cut_into_blocks
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.models import make_net
from fedsim.models.net import Net
from fedsim.stacking.stack_size import choose_stack_size
from fedsim.training.local_loop import TrainedModel
from tests.fedsim.methods import FREEZING, quick, slow_unless_varied
from tests.fedsim.stacks import SIZES, close, pictures, run, same_as_one_by_one, small


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The number type of everything that is made in a test."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("name", slow_unless_varied(sorted(ALGORITHMS)))
def test_stacked_clients_end_where_they_end_one_by_one(name: str, precision: torch.dtype) -> None:
    same_as_one_by_one(quick(name), 3, precision)


@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
def test_the_same_clients_are_frozen_as_one_by_one(precision: torch.dtype) -> None:
    last = same_as_one_by_one(FedCL(**FREEZING), 3, precision, small(precision, cohort_size=6, rounds=4))
    assert last.method["phase"] == "2 of 2"
    assert len(last.cohort) == 3  # the others are frozen
    assert last.method["newly_frozen"]
    assert last.state.standing.frozen.sum() > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack_size", "precision"), [(3, torch.float32), (7, torch.float64)], indirect=["precision"], ids=str
)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_in_both_precisions_and_stack_sizes(name: str, stack_size: int, precision: torch.dtype) -> None:
    same_as_one_by_one(quick(name), stack_size, precision)


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
    local = LocalTraining(
        epochs=2, batch_size=8, momentum=0.9, weight_decay=0.01, lr_alpha=0.3, round_decay=0.8
    )
    plain = small(precision, local=local)
    population = replace(plain, dataset=replace(plain.dataset, augment=jittered))
    algorithm = quick(name)
    same_as_one_by_one(algorithm, 4, precision, population)
    one, other = (run(algorithm, each, StackedPool(algorithm, each, 4))[0] for each in (plain, population))
    assert one.digest != other.digest


class Keeping(FedAvg):
    """Clients keep the model that they ended with."""

    stateful = True

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        return super().make_update(ctx, task, trained)._replace(client_state=dict(trained.params))


def test_a_client_without_steps_keeps_its_parameters_exactly() -> None:
    algorithm, population = Keeping(), small(rounds=1)
    _, memories = run(algorithm, population, StackedPool(algorithm, population, 7))
    first = population.nets[0].init(population.settings.seed)
    assert all(torch.equal(memories[str(SIZES.index(0))][key], first[key]) for key in first)
    assert not torch.equal(memories["0"]["head.weight"], first["head.weight"])


def with_statistics() -> nn.Sequential:
    module = nn.Sequential()
    module.add_module(
        "body", nn.Sequential(nn.Conv2d(1, 2, 5, 4), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    )
    module.add_module("head", nn.Linear(72, 4))
    return module


@pytest.mark.parametrize(
    ("algorithm", "together"), [(FedAvg(), True), (FedAvg(), False), (FedBN(), False)], ids=str
)
def test_convolutions_are_stacked_and_running_statistics_are_not(
    algorithm: Algorithm, together: bool
) -> None:
    population = pictures() if together else pictures(Net(with_statistics))
    expected, _ = run(algorithm, population, SerialPool(algorithm, population))
    found, _ = run(algorithm, population, StackedPool(algorithm, population, 3))
    if together:
        assert found.engine["stacked"] == {"together": 3, "alone": {}}
        close(found.state, expected.state, 1e-4)
    else:
        why = "BatchNorm keeps running statistics; GroupNorm (norm: group) does not"
        assert (found.digest, found.memory_digest) == (expected.digest, expected.memory_digest)
        assert found.engine["stacked"] == {"together": 0, "alone": {why: 3}}


@pytest.mark.slow
@pytest.mark.parametrize("precision", [torch.float64], indirect=True, ids=str)
@pytest.mark.parametrize("name", ["cd2_pfed", "per_fedavg", "moon"])
def test_methods_that_look_into_a_net_stack_its_convolutions(name: str, precision: torch.dtype) -> None:
    """Channels that stay at home, derivatives of derivatives, features of two other models."""
    same_as_one_by_one(quick(name), 3, precision, pictures(double=True, rounds=3))


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


class Played:
    """Recorded work in place of a CUDA graph: it is done when it is played, and not before."""

    made: ClassVar[list[Played]] = []

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.times = work, 0
        self.made.append(self)

    def replay(self) -> None:
        self.times += 1
        self.work()


@pytest.mark.parametrize("name", ["scaffold", "per_fedavg", "fedgen", "fedrep"])
def test_steps_that_are_played_are_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 3 examples, batches in pairs and with noise; the odd last one of an epoch is not played."""
    monkeypatch.setattr(Played, "made", [])
    local = LocalTraining(epochs=6, batch_size=3, lr=0.05, momentum=0.9)
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
    population = small(rounds=1, local=LocalTraining(epochs=9, batch_size=3, lr_alpha=0.1))
    run(FedAvg(), population, StackedPool(FedAvg(), population, 4, recorder=Played))
    assert not Played.made


@pytest.mark.parametrize(
    ("clients", "stack_size", "sizes"),
    [
        (10, 3, [3, 3, 3, 1]),
        (10, 7, [5, 5]),
        (3, 8, [3]),
        (0, 4, []),
        (300, 4, [4] * 75),
        (130, 1, [1] * 130),
        (2100, 2, [4] * 525),
        (2050, 1, [3] * 683 + [1]),
    ],
)
def test_blocks_hold_whole_stacks(clients: int, stack_size: int, sizes: list[int]) -> None:
    """10 clients in stacks of at most 7 are two of 5; 1050 stacks are more than 1024: two a block."""
    blocks = cut_into_blocks(range(clients), lambda client: client % 5, stack_size=lambda _: stack_size)
    assert [len(block) for block in blocks] == sizes
    steps = [client % 5 for block in blocks for client in block]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    ("device", "cohort", "batch", "stack_size"),
    [
        ("cuda", 8, 8, 8),
        ("cuda", 1000, 8, 64),
        ("cuda", 8, 10**7, 1),  # a step is enough for a GPU
        ("cpu", 1000, 8, 1),  # wide stacks gain little, and leave workers without any
    ],
)
def test_the_automatic_stack_size(device: str, cohort: int, batch: int, stack_size: int) -> None:
    population = small(cohort_size=cohort, local=LocalTraining(epochs=1, batch_size=batch))
    assert [choose_stack_size(stack, population, device) for stack in ("auto", "off", 5)] == [
        stack_size,
        1,
        5,
    ]


def test_the_automatic_stack_size_of_models_that_cannot_be_stacked() -> None:
    assert choose_stack_size("auto", replace(small(), nets=(Net(with_statistics),)), "cuda") == 1
