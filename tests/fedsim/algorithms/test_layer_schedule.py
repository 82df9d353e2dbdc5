"""Layer scheduling: identities with FedBABU, what is frozen, what travels, what it costs.

The floating-point operations of `fedavg_cnn` on 28x28, of one example: f1 = 2 x 25 x 32 x 24^2 in conv1,
f2 = 2 x 800 x 64 x 8^2 in conv2, f3 = 2 x 1024 x 512 in fc1, fh = 2 x 512 x 10 in the head. Going forward
costs their sum. Going back, a layer costs its own once more for the gradient of its weights, where they are
open, and once more for that of its inputs, where something below it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsim.algorithms import FedAvg, FedBABU, LayerSchedule
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, Context, LocalTraining, ReducedUpdates, RunSettings
from fedsim.curriculum import ClientCurriculum
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.training.effort import paper_updates
from tests.fedsim.federations import partition
from tests.fedsim.stacks import TOLERANCE, check_closed, close, deep

ORDERS: list[Any] = ["vanilla", "anti"]
PHASES = {"vanilla": [832, 52_096, 576_896], "anti": [524_800, 576_064, 576_896]}
OPEN = {
    "vanilla": [["conv1"], ["conv1", "conv2"], ["conv1", "conv2", "fc1"]],
    "anti": [["fc1"], ["conv2", "fc1"], ["conv1", "conv2", "fc1"]],
}


Pool = Callable[[Algorithm, Population], SerialPool]

POOLS: dict[str, Pool] = {"one by one": SerialPool, "stacked": partial(StackedPool, stack_size=3)}


def run(algorithm: Algorithm, population: Population, pool: Pool = SerialPool) -> list[RoundResult]:
    return list(simulate(algorithm, population, pool(algorithm, population)))


def images() -> Population:
    """Two clients with two images of 1x28x28 each, one step a round."""
    x = np.random.default_rng(0).normal(size=(6, 1, 28, 28)).astype(np.float32)
    data = Dataset(
        name="noise",
        train=Examples(x[:4], np.arange(4)),
        test=Examples(x[4:], np.arange(2)),
        num_classes=10,
        input_shape=(1, 28, 28),
        classes=tuple("0123456789"),
    )
    net = make_net("fedavg_cnn", input_shape=data.input_shape, num_classes=10)
    return Population(
        dataset=data,
        partition=partition([2, 2]),
        nets=(net,),
        settings=RunSettings(
            seed=3, rounds=3, cohort_size=2, local=LocalTraining(epochs=1, batch_size=2, lr=0.1)
        ),
    )


def first_visit(algorithm: Algorithm, population: Population, number: int = 0) -> tuple[Context, ClientTask]:
    """The first client's visit in a round, from the first state."""
    ctx = population.context(number)
    down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
    return ctx, SerialPool(algorithm, population).worker.loader.make_task(algorithm, ctx, 0, down, {}, None)


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("order", ORDERS)
def test_with_everything_open_from_the_start_it_is_fedbabu_bit_for_bit(order: Any, pool: Pool) -> None:
    """How clients' own models do is in `test_layer_tuning.py`."""
    scheduled = run(LayerSchedule(order=order, times=(0, 0, 0)), deep(), pool)
    for found, expected in zip(scheduled, run(FedBABU(), deep(), pool), strict=True):
        assert found.digest == expected.digest
        assert (found.metrics, found.traffic) == (expected.metrics, expected.traffic)
    assert [r.digest for r in run(LayerSchedule(order=order, every=0), deep(), pool)] == [
        r.digest for r in scheduled
    ]


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("order", ORDERS)
def test_closed_blocks_and_the_head_have_their_first_values_bit_for_bit(order: Any, pool: Pool) -> None:
    """Blocks open while clients are stacked, too; what is open then ends where it ends one by one."""
    population, algorithm = deep(), LayerSchedule(order=order, times=(0, 2, 5))
    results = run(algorithm, population, pool)
    check_closed(order, population, results)
    for result, expected in zip(results, run(algorithm, population), strict=True):
        close(result.state.params, expected.state.params, TOLERANCE[torch.float32])
    if pool is not SerialPool:
        assert all(result.engine["stacked"]["together"] >= 6 for result in results)


@dataclass(frozen=True, kw_only=True)
class Nosy(LayerSchedule):
    """Looks at what came up."""

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        assert not ctx.net.head & set(reduced["params"])
        assert set(reduced["params"]) == {
            key for block in self.open_blocks(ctx, state) for key in ctx.net.blocks[block]
        }
        return super().aggregate(ctx, state, reduced)


@pytest.mark.parametrize("order", ORDERS)
def test_only_open_blocks_travel_in_the_papers_numbers(order: Any) -> None:
    """Both ways, per client and phase; and the server never receives a head."""
    results = run(Nosy(order=order, times=(0, 1, 2)), images())
    for result, floats, blocks in zip(results, PHASES[order], OPEN[order], strict=True):
        assert result.traffic.down == result.traffic.up == 2 * 4 * floats
        assert result.traffic.by_payload == {"params": 2 * 2 * 4 * floats}
        assert result.method["open_blocks"] == blocks


@pytest.mark.parametrize(
    ("algorithm", "floats"),
    [
        (LayerSchedule(times=(0, 1, 2)), PHASES["vanilla"]),
        (LayerSchedule(order="anti", times=(0, 1, 2)), PHASES["anti"]),
        (FedBABU(), [576_896] * 3),
        (FedAvg(), [582_026] * 3),
    ],
    ids=["vanilla", "anti", "fedbabu", "fedavg"],
)
def test_a_survey_sends_what_clients_do_not_have(algorithm: FedAvg, floats: list[int]) -> None:
    """Closed blocks and the head never travel: those who are asked have them. Also inside a curriculum."""
    population = images()
    for outer in (algorithm, ClientCurriculum(base=algorithm)):
        pool, state = SerialPool(outer, population), make_initial_state(outer, population)
        for number, expected in enumerate(floats):
            survey = pool.measure_losses(population.context(number), state, [0, 1])
            assert (survey.traffic.down, survey.traffic.up) == (2 * 4 * expected, 2 * 4)
            assert np.isfinite(survey.losses).all()


def flops(algorithm: Algorithm, number: int) -> int:
    """Of one step on two images, per image."""
    ctx, task = first_visit(algorithm, images(), number)
    with FlopCounterMode(display=False) as counter:
        algorithm.train_client(ctx, task)
    return counter.get_total_flops() // 2


def test_no_gradient_is_computed_for_what_is_closed() -> None:
    f1, f2, f3, fh = 2 * 25 * 32 * 24**2, 2 * 800 * 64 * 8**2, 2 * 1024 * 512, 2 * 512 * 10
    forward = f1 + f2 + f3 + fh
    assert flops(FedAvg(), 0) == forward + (f1 + f2 + f3 + fh) + (f2 + f3 + fh)
    assert flops(FedBABU(), 0) == forward + (f1 + f2 + f3) + (f2 + f3 + fh)
    vanilla = [flops(LayerSchedule(order="vanilla", times=(0, 1, 2)), number) for number in range(3)]
    weights = [f1, f1 + f2, f1 + f2 + f3]
    assert vanilla == [forward + mine + (f2 + f3 + fh) for mine in weights]
    anti = [flops(LayerSchedule(order="anti", times=(0, 1, 2)), number) for number in range(3)]
    assert anti == [forward + f3 + fh, forward + (f2 + f3) + (f3 + fh), vanilla[2]]


@pytest.mark.parametrize("order", ORDERS)
def test_effort_names_what_moves(order: Any) -> None:
    algorithm, population = LayerSchedule(order=order), images()
    state = make_initial_state(algorithm, population)
    for number, floats in zip((0, 99, 100, 199, 200), np.repeat(PHASES[order], [2, 2, 1]), strict=True):
        ctx = replace(population.context(0), round=number)
        (effort,) = algorithm.count_effort(ctx, state, 7)
        assert effort.steps == 7
        assert sum(state.params[key].numel() for key in effort.trainable) == floats


def test_closed_blocks_keep_their_running_statistics_and_use_them() -> None:
    """fedgen_cnn has BatchNorm in conv1 and conv2; under anti, fc1 opens first."""
    data = replace(images().dataset, input_shape=(1, 28, 28))
    net = make_net("fedgen_cnn", input_shape=data.input_shape, num_classes=10)
    population = replace(images(), nets=(net,))
    ctx, task = first_visit(LayerSchedule(order="anti"), population)
    algorithm = LayerSchedule(order="anti")
    start = algorithm.initial_params(ctx, task)
    trained = algorithm.train_locally(ctx, task, start, algorithm.trainable_keys(ctx, task.broadcast))
    for key, value in trained.params.items():
        assert torch.equal(value, start[key]) == (not key.startswith("fc1")), key
    with torch.no_grad():
        expected = algorithm.loss(ctx, task, start, task.batches[0])
    assert float(trained.loss) == pytest.approx(float(expected), rel=1e-6)
    assert not any(module.training for module in net.module.modules())


@pytest.mark.parametrize(
    ("algorithm", "billions"),
    [
        (FedAvg(), 873.039),
        (FedBABU(), 865.344),
        (LayerSchedule(order="vanilla"), 314.912),
        (LayerSchedule(order="anti"), 838.880),
    ],
    ids=["fedavg", "fedbabu", "vanilla", "anti"],
)
def test_the_papers_table_4(algorithm: FedAvg, billions: float) -> None:
    """T = 300, 50 batches of each of 100 clients in every round, from what each method says that it moves."""
    population = images()
    state, moved = make_initial_state(algorithm, population), []
    for number in range(300):
        (effort,) = algorithm.count_effort(replace(population.context(0), round=number), state, 50)
        moved.append(population.nets[0].count_parameters_of(effort.trainable))
    assert round(paper_updates(moved) / 1e9, 3) == billions
