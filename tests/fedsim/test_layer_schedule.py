"""Layer scheduling: identities with FedBABU, what is frozen, what travels, what it costs, what is refused.

The floating-point operations of `fedavg_cnn` on 28x28, of one example: f1 = 2 x 25 x 32 x 24^2 in conv1,
f2 = 2 x 800 x 64 x 8^2 in conv2, f3 = 2 x 1024 x 512 in fc1, fh = 2 x 512 x 10 in the head. Going forward
costs their sum. Going back, a layer costs its own once more for the gradient of its weights, where they are
open, and once more for that of its inputs, where something below it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsim.algorithms import FedAvg, FedBABU, LayerSchedule
from fedsim.algorithms.layer_schedule import PlateauState
from fedsim.core import Algorithm, Context, Local, Reduced, Visit
from fedsim.curriculum import ClientCurriculum
from fedsim.data.dataset import Dataset, Examples
from fedsim.digest import digest
from fedsim.effort import paper_updates
from fedsim.errors import SpecError
from fedsim.models import make_net
from fedsim.packing import pack, unpack
from fedsim.pools import SerialPool, StackedPool
from fedsim.population import Population
from fedsim.simulation import RoundResult, first_state, simulate
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import parse_spec
from tests.fedsim.federations import federation, partition
from tests.fedsim.stacks import TOLERANCE, close

ORDERS: list[Any] = ["vanilla", "anti"]
PHASES = {"vanilla": [832, 52_096, 576_896], "anti": [524_800, 576_064, 576_896]}
OPEN = {
    "vanilla": [["conv1"], ["conv1", "conv2"], ["conv1", "conv2", "fc1"]],
    "anti": [["fc1"], ["conv2", "fc1"], ["conv1", "conv2", "fc1"]],
}


Pool = Callable[[Algorithm, Population], SerialPool]

POOLS: dict[str, Pool] = {"one by one": SerialPool, "stacked": partial(StackedPool, width=3)}


def run(algorithm: Algorithm, population: Population, pool: Pool = SerialPool) -> list[RoundResult]:
    return list(simulate(algorithm, population, pool(algorithm, population)))


def deep(**changes: Any) -> Population:
    """Three base blocks: fc1, fc2 and fc3; eight clients come, so that most are stacked with others."""
    return replace(federation(layers=3, hidden=6, rounds=6, cohort_size=8), **changes)


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
        local=Local(epochs=1, batch_size=2, lr=0.1),
        seed=3,
        cohort_size=2,
        rounds=3,
    )


def first_visit(algorithm: Algorithm, population: Population, number: int = 0) -> tuple[Context, Visit]:
    """The first client's visit in a round, from the first state."""
    ctx = population.context(number)
    down = algorithm.broadcast(ctx, first_state(algorithm, population))
    return ctx, SerialPool(algorithm, population).worker.shelf.visit(algorithm, ctx, 0, down, {}, None)


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


def check_closed(order: str, population: Population, results: list[RoundResult]) -> None:
    """That with times (0, 2, 5) every block has its first values until its round, and moves from then on."""
    first, blocks = population.nets[0].init(population.seed), population.nets[0].blocks
    opening = ["fc1", "fc2", "fc3"] if order == "vanilla" else ["fc3", "fc2", "fc1"]
    assert [result.round for result in results] == [1, 2, 3, 4, 5, 6]
    for result in results:
        count = sum(time < result.round for time in (0, 2, 5))
        assert result.method["open_blocks"] == sorted(opening[:count])
        for block, keys in blocks.items():
            same = all(torch.equal(result.state.params[key], first[key]) for key in keys)
            assert same == (block not in opening[:count]), (result.round, block)


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

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
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
        pool, state = SerialPool(outer, population), first_state(outer, population)
        for number, expected in enumerate(floats):
            survey = pool.measure(outer, population.context(number), state, [0, 1])
            assert (survey.traffic.down, survey.traffic.up) == (2 * 4 * expected, 2 * 4)
            assert np.isfinite(survey.losses).all()


def flops(algorithm: Algorithm, number: int) -> int:
    """Of one step on two images, per image."""
    ctx, visit = first_visit(algorithm, images(), number)
    with FlopCounterMode(display=False) as counter:
        algorithm.train(ctx, visit)
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
    state = first_state(algorithm, population)
    for number, floats in zip((0, 99, 100, 199, 200), np.repeat(PHASES[order], [2, 2, 1]), strict=True):
        ctx = replace(population.context(0), round=number)
        (effort,) = algorithm.effort(ctx, state, 7)
        assert effort.steps == 7
        assert sum(state.params[key].numel() for key in effort.trainable) == floats


def test_closed_blocks_keep_their_running_statistics_and_use_them() -> None:
    """fedgen_cnn has BatchNorm in conv1 and conv2; under anti, fc1 opens first."""
    data = replace(images().dataset, input_shape=(1, 28, 28))
    net = make_net("fedgen_cnn", input_shape=data.input_shape, num_classes=10)
    population = replace(images(), nets=(net,))
    ctx, visit = first_visit(LayerSchedule(order="anti"), population)
    algorithm = LayerSchedule(order="anti")
    start = algorithm.start(ctx, visit)
    trained = algorithm.descend(ctx, visit, start, algorithm.trainable(ctx, visit.broadcast))
    for key, value in trained.params.items():
        assert torch.equal(value, start[key]) == (not key.startswith("fc1")), key
    with torch.no_grad():
        expected = algorithm.loss(ctx, visit, start, visit.batches[0])
    assert float(trained.loss) == pytest.approx(float(expected), rel=1e-6)
    assert not any(module.training for module in net.module.modules())


def test_times_that_are_worked_out() -> None:
    ctx = deep(rounds=301).context(0)
    state = first_state(LayerSchedule(), deep())
    assert LayerSchedule().unfreezing(ctx, state) == (0, 100, 200)
    assert LayerSchedule(every=7).unfreezing(ctx, state) == (0, 7, 14)
    assert LayerSchedule(times="even").unfreezing(ctx, state) == (0, 100, 200)
    assert LayerSchedule(times="even").unfreezing(federation(layers=4).context(0), state) == (0, 0, 1, 2)
    assert LayerSchedule(times=[0, 3, 3]).unfreezing(ctx, state) == (0, 3, 3)  # type: ignore[arg-type]


def test_a_plateau_opens_the_next_block() -> None:
    """Better by more than 0.1 counts; two rounds without it open one, which starts the comparison anew."""
    algorithm = LayerSchedule(times="plateau", patience=2, improvement=0.1)
    population = deep()
    state = first_state(algorithm, population)
    assert state == PlateauState(params=state.params, times=(0,), best=inf, waited=0)
    seen = []
    for number, loss in enumerate([2.0, 1.95, 1.8, 1.75, 1.72, 3.0, 2.95, 2.92, 1.0, 1.0, 1.0, 1.0]):
        ctx = replace(population.context(0), round=number)
        seen.append(len(algorithm.open_blocks(ctx, state)))
        state = algorithm.watched(ctx, state, loss)
        assert algorithm.describe(ctx, state)["open_blocks"] == ["fc1", "fc2", "fc3"][: seen[-1]]
    # 1.95 is no better than 2.0; 1.8 is; neither 1.75 nor 1.72 is, so round 5 has two, and round 8 three.
    assert seen == [1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert (state.times, state.waited) == ((0, 5, 8), 3)


@pytest.mark.parametrize("loss", [nan, inf])
def test_a_loss_that_is_no_number_opens_nothing(loss: float) -> None:
    """Neither does it count as a round without improvement."""
    algorithm, population = LayerSchedule(times="plateau", patience=2, improvement=0.1), deep()
    state = first_state(algorithm, population)
    for number, found in enumerate([2.0, 2.0, loss, loss, loss]):
        state = algorithm.watched(replace(population.context(0), round=number), state, found)
    assert (state.times, state.best, state.waited) == ((0,), 2.0, 1)
    state = algorithm.watched(replace(population.context(0), round=5), state, 2.0)
    assert state.times == (0, 6)


def test_plateaus_in_a_run() -> None:
    """With an improvement that no round makes, each block opens after `patience` rounds."""
    algorithm = LayerSchedule(times="plateau", patience=1, improvement=50.0)
    results = run(algorithm, deep())
    assert [len(r.method["open_blocks"]) for r in results] == [1, 1, 2, 2, 3, 3]
    assert results[-1].method["times"] == [0, 2, 4]
    assert results[1].method["best_loss"] is None
    assert results[2].method["best_loss"] == pytest.approx(results[2].metrics["train_loss"], abs=1e-6)
    for result in results:  # what a checkpoint does
        kept = unpack(pack(result.state), results[0].state)
        assert type(kept) is PlateauState
        assert (digest(kept), kept.times) == (result.digest, result.state.times)


def refused(tmp_path: Path, model: Any, **params: Any) -> list[tuple[str, str]]:
    spec = parse_spec({"algorithm": {"name": "layer_schedule"} | params, "model": model, "rounds": 2})
    with pytest.raises(SpecError) as caught:
        resolve(spec, Settings(home=tmp_path))
    return [(error.path, error.message) for error in caught.value.errors]


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    three = {"name": "mlp", "layers": 3}
    for name in ("layer_schedule", "fedbabu", "fedper", "fedrep", "lg_fedavg"):
        found = refused(tmp_path, "logistic", name=name)
        assert found == [("algorithm.name", "logistic has no blocks before its head")]
        resolve(parse_spec({"algorithm": name, "model": "mlp"}), Settings(home=tmp_path))
    found = refused(tmp_path, three, times=[0, 100])
    assert found == [("algorithm.times", "mlp has 3 base blocks: fc1, fc2, fc3")]
    assert refused(tmp_path, three, times=[0, 9, 3])[0][0] == "algorithm.times"
    assert refused(tmp_path, three, times=[1, 2, 3])[0][0] == "algorithm.times"
    assert "of at least 0" in refused(tmp_path, three, times=[0, -1, 3])[0][1]
    resolve(
        parse_spec({"algorithm": {"name": "layer_schedule", "times": [0, 4, 8]}, "model": three}),
        Settings(home=tmp_path),
    )


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
    state, moved = first_state(algorithm, population), []
    for number in range(300):
        (effort,) = algorithm.effort(replace(population.context(0), round=number), state, 50)
        moved.append(population.nets[0].count_of(effort.trainable))
    assert round(paper_updates(moved) / 1e9, 3) == billions
