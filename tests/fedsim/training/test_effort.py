"""What training costs: counted by hand, by torch's own counter, and as the layer-scheduling paper counts it.

FedAvgCNN on 28 x 28 x 1, forward, two operations for each product and its addition:

    conv1  24 24 32 (25)   x 2 =   921,600      conv2  8 8 64 (32 25) x 2 = 6,553,600
    fc1    1024 512        x 2 = 1,048,576      fc2    512 10         x 2 =    10,240

Backward costs the same again for the weights of each layer that trains, and once more for the inputs of each
layer that has something below it that trains.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedsim.algorithms import ALGORITHMS
from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import rng
from fedsim.base.costs import Cost
from fedsim.clients.population import Population
from fedsim.core import Context, Effort, LocalTraining, RunSettings
from fedsim.core.capabilities import select_cohort
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.curriculum.phases import PhaseCurriculum
from fedsim.data import Dataset, Examples
from fedsim.data.federation import make_federation
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.models.net import InputForm, Net
from fedsim.samplers import CohortSampling
from fedsim.samplers.oort import Oort
from fedsim.samplers.samplers import PowerOfChoice
from fedsim.training.effort import CostMeter, paper_updates
from fedsim.training.flops import example_flops
from fedsim.uploads.tilted_weights import TiltedWeights
from jobs.spec import parse_spec, parse_text, preset_text
from jobs.spec.spec_text import apply_overrides
from tests.fedsim.federations import federation

CONV1, CONV2, FC1, FC2 = 921_600, 6_553_600, 1_048_576, 10_240
FORWARD = CONV1 + CONV2 + FC1 + FC2


@pytest.fixture(scope="module")
def cnn() -> Net:
    """The paper's model on MNIST."""
    return make_net("fedavg_cnn", input_shape=(1, 28, 28), num_classes=10)


def test_the_count_of_a_large_model_takes_no_memory() -> None:
    """The weights would take 4 TB; a service counts the FLOPs of models that its callers name."""
    side = 10**6
    net = make_net("mlp", input_shape=(side,), num_classes=10, hidden=side)
    assert example_flops(net, (), torch.zeros(side)) == 2 * (side * side + 10 * side)


def test_the_table_of_the_paper_comes_out_exactly(cnn: Net) -> None:
    """Tables 3 and 4 at T = 300: blocks are unfrozen after rounds 0, 100 and 200."""
    conv1, conv2, fc1, fc2 = map(cnn.count_parameters, cnn.block_names)
    whole, base = cnn.count_parameters(), cnn.count_parameters() - fc2
    assert (conv1, conv1 + conv2, base) == (832, 52_096, 576_896)
    assert (fc1, fc1 + conv2, base) == (524_800, 576_064, 576_896)
    vanilla = [n for n in (conv1, conv1 + conv2, base) for _ in range(100)]
    anti = [n for n in (fc1, fc1 + conv2, base) for _ in range(100)]
    assert paper_updates([whole] * 300) == 873_039_000_000
    assert paper_updates([base] * 300) == 865_344_000_000
    assert paper_updates(vanilla) == 314_912_000_000
    assert paper_updates(anti) == 838_880_000_000


def written_down() -> list[str]:
    """The `--set` items that docs/presets.md gives for Table 4."""
    page = (Path(__file__).parents[3] / "docs" / "presets.md").read_text("utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| Table 4, Fig. 7")]
    return re.findall(r"`([\w.]+=[\w.]+)`", row.split("|")[3].partition(":")[0])


@pytest.mark.parametrize(
    ("item", "billions"),
    [
        ("algorithm=fedavg", 873.039),
        ("algorithm=fedbabu", 865.344),
        ("algorithm.order=vanilla", 314.912),
        ("algorithm.order=anti", 838.880),
    ],
)
def test_records_of_the_written_down_run_add_up_to_table_4(cnn: Net, item: str, billions: float) -> None:
    """What `cost.updates` of 300 records say: nothing changes but in rounds 0, 100 and 200."""
    items = written_down()
    assert "data.dataset.name=mnist" in items
    spec = parse_spec(apply_overrides(parse_text(preset_text("layers-fmnist")), [*items, item]))
    images, labels = np.zeros((60_000, 1, 28, 28), np.uint8), np.arange(60_000) % 10
    held, limit = Examples(images, labels), spec.data.limit
    assert limit is not None
    data = Dataset(
        name="blank",
        train=held.select_rows(slice(limit)),
        test=held.select_rows(slice(100)),
        num_classes=10,
        input_shape=(1, 28, 28),
        classes=tuple("0123456789"),
    )
    assert (spec.data.partition.kind, spec.data.tests.kind) == ("iid", "global")
    shared = make_federation(data, "iid", num_clients=spec.clients.total, seed=spec.seed, tests="global")
    population = Population(
        dataset=shared.dataset,
        partition=shared.train,
        nets=(cnn,),
        settings=RunSettings(
            seed=spec.seed,
            rounds=spec.rounds,
            cohort_size=spec.clients.cohort_size,
            local=LocalTraining(epochs=spec.local.epochs, batch_size=spec.local.batch_size),
        ),
    )
    algorithm = ALGORITHMS[spec.algorithm.name](**spec.algorithm.params)
    meter, state, updates = CostMeter(algorithm, population), make_initial_state(algorithm, population), 0
    for number in (0, 100, 200):
        ctx = population.context(number)
        cohort = select_cohort(algorithm, ctx, state, rng.stream(spec.seed, "cohort", number))
        assert len(cohort) == 100
        updates += 100 * meter.training_cost(ctx, state, cohort).updates
    assert spec.rounds == 300
    assert updates == round(billions * 1e9)


@pytest.mark.parametrize(
    ("blocks", "backward"),
    [
        (("conv1", "conv2", "fc1", "fc2"), FORWARD + FORWARD - CONV1),
        ((), 0),
        (("conv1",), CONV1 + CONV2 + FC1 + FC2),
        (("fc1",), FC1 + FC2),
        (("fc2",), FC2),
    ],
)
def test_operations_by_hand(cnn: Net, blocks: Sequence[str], backward: int) -> None:
    """Vanilla's backward pass crosses the frozen layers above; anti's stops early."""
    names = dict(zip(("conv1", "conv2", "fc1", "fc2"), cnn.block_names, strict=True))
    keys = {key for block in blocks for key in cnn.blocks[names[block]]}
    assert example_flops(cnn, keys, torch.zeros(1, 28, 28)) == FORWARD + backward


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg_cnn", "resnet9", "small_transformer"])
def test_torchs_own_counter_says_the_same(name: str) -> None:
    tokens = name == "small_transformer"
    shape = (12,) if tokens else (3, 16, 16)
    net = make_net(name, input_shape=shape, num_classes=5, vocabulary=50 if tokens else 0)
    example = torch.ones(shape, dtype=torch.int32 if tokens else torch.float32)
    params = net.init(0)
    weights = [params[key].requires_grad_() for key in net.parameters]
    state = {**net.module.state_dict(), **params}
    state = {key: value if key in params else torch.zeros(value.shape) for key, value in state.items()}
    with net.training_mode(), FlopCounterMode(display=False) as counter:
        output = functional_call(net.module, state, (torch.stack([example] * 2),))
        torch.autograd.grad(output.sum(), weights)
    assert example_flops(net, net.parameters, example) == counter.get_total_flops() // 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def test_an_lstm_is_counted_as_its_matrix_products() -> None:
    """Four gates of 32 units, over 20 steps: of 8 inputs and of 32 units each."""
    net = Net(Recurrent, "own", inputs=InputForm((20, 8), 0, (2,)))
    assert example_flops(net, (), torch.zeros(20, 8)) == 20 * 2 * 4 * 32 * (8 + 32) + 2 * 32 * 2


def test_counting_draws_nothing_and_leaves_the_net_as_it_was(cnn: Net) -> None:
    before = torch.random.get_rng_state()
    example_flops(make_net("mlp", input_shape=(4,), num_classes=2), (), torch.zeros(4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not cnn.module.training


def test_a_round_counts_the_steps_that_were_made() -> None:
    """Ten clients of 192 examples: two epochs of batches of 8, an mlp of 12 -> h -> 4."""
    population = federation(hidden=5)
    net, sizes = population.nets[0], population.partition.sizes()
    (result, *_) = simulate(FedAvg(), population, SerialPool(FedAvg(), population), rounds=1)
    steps = sum(2 * -(-size // 8) for size in sizes)
    assert net.count_parameters() == 12 * 5 + 5 + 5 * 4 + 4
    assert result.cost.updates == net.count_parameters() * steps
    each = 2 * (60 + 20) + 2 * (60 + 20) + 2 * 20
    assert result.cost.flops == 2 * int(sizes.sum()) * each
    record = result.record()["cost"]
    assert record == {
        "updates": result.cost.updates,
        "flops": result.cost.flops,
        "tuning_updates": 0,
        "tuning_flops": 0,
    }


@dataclass(frozen=True, kw_only=True)
class Kinds(FedAvg):
    """A step for the head, then the others for the body, beside a second head and a teacher."""

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Two kinds."""
        return (
            Effort(1, ctx.net.head, extra_parameters=7),
            Effort(steps - 1, ctx.net.body, forwards=1),
        )


def test_steps_of_several_kinds() -> None:
    """Client 2 holds 11 examples: in one epoch of batches of 8, two steps, one of each kind."""
    population = federation(hidden=5, local=LocalTraining(epochs=1, batch_size=8))
    ctx, net = population.context(0), population.nets[0]
    head, body = 5 * 4 + 4, 12 * 5 + 5
    cost = CostMeter(Kinds(), population).training_cost(ctx, None, [2])
    assert cost.updates == (head + 7) + body
    assert (net.count_parameters_of(net.head), net.count_parameters_of(net.body)) == (head, body)
    forward = 2 * (60 + 20)
    first, second = forward + 2 * 20 + 4 * 7, forward + 2 * 20 + 2 * 60 + forward
    assert cost.flops == 5 * first + 5 * second


SCORING = {
    "oort": (CohortSampling(base=FedAvg(), sampler=Oort()), 1),
    "power_of_choice": (CohortSampling(base=FedAvg(), sampler=PowerOfChoice()), 0),
    "kept losses": (ClientCurriculum(base=FedAvg(), scores="kept"), 1),
    "examples": (DataCurriculum(base=FedAvg(), score="global_loss"), 1),
    "examples by two models": (DataCurriculum(base=FedAvg(), score="both_loss"), 2),
    "examples in a random order": (DataCurriculum(base=FedAvg(), order="random"), 0),
    "all examples": (DataCurriculum(base=FedAvg(), b=1.0), 0),
    "phases": (PhaseCurriculum(base=FedAvg()), 1),
    "term": (TiltedWeights(base=FedAvg(), tilt=1.0), 1),
    "qfedavg": (ALGORITHMS["qfedavg"](), 1),
    "afl": (ALGORITHMS["afl"](), 1),
    "fedcl": (ALGORITHMS["fedcl"](alpha=0.0, beta=0.0), 1),
    "feddistill+": (ALGORITHMS["feddistill_plus"](), 1),
    "ifca": (ALGORITHMS["ifca"](clusters=3), 3),
}
"""A method, and the passes in which its clients measure losses or logits."""


@pytest.mark.parametrize("name", SCORING)
def test_a_pass_that_scores_examples_costs_its_operations(name: str) -> None:
    method, passes = SCORING[name]
    population = federation(hidden=5, rounds=4)
    ctx, forward = population.context(0), 2 * (60 + 20)
    meter, state = CostMeter(method, population), make_initial_state(method, population)
    scoring = forward * passes * population.partition.size(2)
    assert meter.client_flops(ctx, state, [2])[0] == meter.plain_flops(ctx, [2])[0] + scoring


def test_who_holds_nothing_costs_nothing() -> None:
    empty = federation([0, 4], hidden=5)
    ctx = empty.context(0)
    assert CostMeter(FedAvg(), empty).training_cost(ctx, FedAvg().init_server_state(ctx), [0]) == Cost()
