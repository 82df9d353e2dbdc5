"""Any nn.Module trains as its own forward says: compared with a plain PyTorch loop, bit for bit."""

from __future__ import annotations

import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base import rng, tree
from fedsim.clients.population import Population
from fedsim.clients.sampling import draw_batches
from fedsim.core import LocalTraining, RunSettings
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import one_thread
from fedsim.errors import SpecError
from fedsim.models.net import InputForm, Net
from fedsim.models.output_shape import check_outputs
from fedsim.models.probe import select_logits
from fedsim.models.state import select_keys
from tests.fedsim.federations import partition
from tests.fedsim.models.own_modules import (
    LOCAL,
    MODULES,
    TOKENS,
    VECTORS,
    FunctionalDropout,
    Normalised,
    PlainMLP,
    Residual,
    SecondOutput,
    federation_of,
)


def digests(population: Population, pool: Any = SerialPool, **options: Any) -> list[str]:
    return [r.digest for r in simulate(FedAvg(), population, pool(FedAvg(), population, **options))]


def train_plainly(population: Population) -> dict[str, Tensor]:
    """One client's rounds in a plain PyTorch loop: the module, torch.optim.SGD, its own forward."""
    net, data, run = population.nets[0], population.dataset.train, population.settings
    with rng.torch_stream(0, "constants"):
        module = net.build()
        module(population.dataset.normalise(tree.wrap_array(data.x[:2])))  # lazy layers get their shapes
    if len(net.inputs.shape) == 3:
        module = module.to(memory_format=torch.channels_last)
    module.load_state_dict({**module.state_dict(), **net.init(run.seed)})
    for number in range(run.rounds):
        moving = [value for value in module.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(
            moving, lr=run.local.lr, momentum=run.local.momentum, weight_decay=run.local.weight_decay
        )
        order = rng.stream(run.seed, "shuffle", number, 0)
        steps = draw_batches(order, len(data), run.local.steps_for(len(data)), run.local.batch_size)
        with rng.torch_stream(run.seed, "dropout", number, 0):
            for rows in steps:
                optimizer.zero_grad()
                x = tree.to_channels_last(population.dataset.normalise(tree.wrap_array(data.x[rows])))
                logits = select_logits(module.train()(x))
                F.cross_entropy(logits, tree.wrap_array(data.y[rows])).backward()
                optimizer.step()
    return {key: value.detach() for key, value in select_keys(module).items()}


@pytest.mark.parametrize(("build", "inputs"), MODULES, ids=[kind.__name__ for kind, _ in MODULES])
def test_a_module_trains_as_in_a_plain_loop(build: Callable[[], nn.Module], inputs: InputForm) -> None:
    net = Net(build, "own", inputs=inputs)
    population = federation_of(net, [40])
    *_, last = simulate(FedAvg(), population, SerialPool(FedAvg(), population))
    with one_thread():
        expected = train_plainly(population)
    assert set(last.state.params) == set(expected) == set(net.keys)
    for key, value in expected.items():
        assert torch.equal(last.state.params[key], value), key


@pytest.mark.parametrize(("build", "inputs"), MODULES, ids=[kind.__name__ for kind, _ in MODULES])
def test_stacks_agree_with_one_by_one_or_say_why_not(
    build: Callable[[], nn.Module], inputs: InputForm
) -> None:
    net = Net(build, "own", inputs=inputs)
    if net.unstackable:
        return
    population = federation_of(net, [16, 11, 16], rounds=1)
    ours, theirs = (
        next(iter(simulate(FedAvg(), population, pool))).state.params
        for pool in (SerialPool(FedAvg(), population), StackedPool(FedAvg(), population, 3))
    )
    for key in net.keys:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)


class Random(nn.Module):
    """A module with connections drawn from a seed: each layer reads the sum of earlier outputs."""

    def __init__(self, layers: int, width: int, seed: int) -> None:
        super().__init__()
        stream = np.random.default_rng(seed)
        self.inputs = nn.Linear(12, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.sources = [sorted(set(stream.integers(n + 1, size=2).tolist())) for n in range(layers)]
        self.functions = [("relu", "tanh", "sigmoid", "abs")[i] for i in stream.integers(4, size=layers)]
        self.outputs = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = [self.inputs(x)]
        for layer, sources, function in zip(self.layers, self.sources, self.functions, strict=True):
            total = sum(made[source] for source in sources)
            made.append(getattr(torch, function)(layer(total)))
        return self.outputs(made[-1] + made[0])


class BuildRandom:
    """A picklable build function."""

    def __init__(self, *arguments: int) -> None:
        self.arguments = arguments

    def __call__(self) -> nn.Module:
        return Random(*self.arguments)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(layers=st.integers(1, 5), width=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_random_modules_train_as_in_a_plain_loop(layers: int, width: int, seed: int) -> None:
    net = Net(BuildRandom(layers, width, seed), "random", inputs=VECTORS)
    population = federation_of(net, [20], rounds=1)
    (result,) = simulate(FedAvg(), population, SerialPool(FedAvg(), population))
    with one_thread():
        expected = train_plainly(population)
    for key, value in expected.items():
        assert torch.equal(result.state.params[key], value), key


class XorModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))


def test_a_plain_module_learns_xor() -> None:
    """Without the ReLU that stands in its forward the accuracy would be that of chance."""
    x = np.random.default_rng(0).uniform(-1, 1, (800, 2)).astype(np.float32)
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(np.int64)
    data = Dataset(
        name="xor",
        train=Examples(x[:600], y[:600]),
        test=Examples(x[600:], y[600:]),
        num_classes=2,
        input_shape=(2,),
        classes=("equal", "different"),
    )
    net = Net(XorModule, "xor", inputs=InputForm((2,), 0, (2,)))
    run = RunSettings(rounds=10, cohort_size=4, local=LocalTraining(epochs=10, batch_size=16, lr=0.3))
    population = Population(dataset=data, partition=partition([150] * 4), nets=(net,), settings=run)
    *_, last = simulate(FedAvg(), population, SerialPool(FedAvg(), population), evaluate_every=10)
    assert last.metrics["global_accuracy"] > 0.93


def test_dropout_in_forward_draws_from_the_clients_stream() -> None:
    net = Net(FunctionalDropout, "own", inputs=VECTORS)
    assert net.stochastic
    assert "draws random numbers" in net.unstackable
    population = federation_of(net, [12, 20, 9])
    first = digests(population)
    torch.manual_seed(123)
    assert digests(population) == first
    assert digests(population, StackedPool, stack_size=3) == first


class DrawnByNumpy(nn.Module):
    """Its weights and a constant come from NumPy and `random`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(np.random.randn(12, 4), dtype=torch.float32))
        scale = np.random.rand(12) * random.random()
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.weight


def test_numpys_numbers_in_a_constructor_come_from_the_seeds() -> None:
    nets = [Net(DrawnByNumpy, "own", inputs=VECTORS) for _ in range(2)]
    assert torch.equal(nets[0].module.scale, nets[1].module.scale)
    with rng.construction_stream(0, "constants"):
        assert torch.equal(nets[0].module.scale, DrawnByNumpy().scale)
    first, again, other = nets[0].init(1), nets[1].init(1), nets[0].init(2)
    assert torch.equal(first["weight"], again["weight"])
    assert not torch.equal(first["weight"], other["weight"])


class ReadingTensors(PlainMLP):
    """Its constructor reads numbers from tensors."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.rates = [float(each) for each in torch.linspace(0, 0.1, 3)] if way == "item" else []
        if way == "if" and self.fc1.weight.sum() > 0:
            self.fc1.weight.data.neg_()
        if way == "numpy":
            self.table = torch.eye(3).numpy()


@pytest.mark.parametrize("way", ["item", "if", "numpy"])
def test_a_constructor_may_read_tensors(way: str) -> None:
    assert Net(partial(ReadingTensors, way), "own", inputs=VECTORS).count_parameters() == 140


class HoldingTensors(PlainMLP):
    """Constants that are neither parameters, nor buffers, nor attributes."""

    def __init__(self, where: str) -> None:
        super().__init__()
        shift = torch.ones(12)
        self.held: Any = {"dict": {"a": shift}, "nested list": [[shift]], "closure": lambda: shift}[where]

    def forward(self, x: Tensor) -> Tensor:
        held = self.held
        shift = held() if callable(held) else held["a"] if isinstance(held, dict) else held[0][0]
        return super().forward(x + shift)


@pytest.mark.parametrize("where", ["dict", "nested list", "closure"])
def test_tensors_anywhere_in_a_module_are_real(where: str) -> None:
    net = Net(partial(HoldingTensors, where), "own", inputs=VECTORS)
    assert net(net.init(0), torch.zeros(3, 12)).shape == (3, 4)


def test_a_net_travels_without_another_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(FunctionalDropout, "own", blocks=["fc1", "fc2"], inputs=VECTORS)
    monkeypatch.setattr("fedsim.models.net.probe_module", None)
    other = pickle.loads(pickle.dumps(net))
    assert (other.stochastic, other.unstackable, other.blocks) == (
        net.stochastic,
        net.unstackable,
        net.blocks,
    )
    assert not net.head_error


def test_declared_blocks_serve_algorithms_that_need_them() -> None:
    net = Net(Residual, "own", blocks={"body": "inner", "head": ["head.*"]}, inputs=VECTORS)
    assert not net.is_chain
    assert (net.base, net.head) == (("body",), {"head.weight", "head.bias"})
    params, x = net.init(1), VECTORS.make_examples()
    features = net.features(params, x)
    assert torch.equal(net.classify(params, features), net(params, x))
    population = federation_of(net, [16, 24], local=replace(LOCAL, momentum=0.0))
    for name in ("fedper", "fedrep", "fedbabu", "lg_fedavg", "fedrod", "moon", "fedala", "layer_schedule"):
        algorithm = ALGORITHMS[name]()
        assert not algorithm.check_hyperparameters(net, 2), name
        results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
        assert len({r.digest for r in results}) == 2 or not algorithm.deploys_models, name
    (fault,) = ALGORITHMS["fedala"](layers=2).check_hyperparameters(net, 2)
    assert (fault.path, fault.hint) == ("layers", "mix one layer, the head: layers: 1")


def test_a_head_that_takes_no_flat_features_has_no_generator() -> None:
    """The check says so; the run failed after round 1 was trained."""
    maps = ("conv", nn.Conv2d(1, 8, 3))
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for head in ([*pooled, nn.Linear(8, 10)], [nn.Conv2d(8, 10, 1), *pooled]):
        parts = OrderedDict([maps, ("head", nn.Sequential(*head))])
        net = Net(partial(nn.Sequential, parts), "own", inputs=InputForm((1, 8, 8)))
        for name in ("fedgen", "fedcl", "fedcl_code"):
            (fault,) = ALGORITHMS[name]().check_hyperparameters(net, 2)
            assert (fault.path, fault.value) == ("name", name)
            assert "no features that a generator can make" in fault.message


@pytest.mark.parametrize(
    "name",
    ["fedala", "fedper", "fedproto", "fedrep", "fedbabu", "lg_fedavg", "fedrod", "moon", "fedgen", "kdia"],
)
def test_an_algorithm_names_the_block_that_is_missing(name: str) -> None:
    net = Net(PlainMLP, "own", inputs=VECTORS)
    (fault,) = ALGORITHMS[name]().check_hyperparameters(net, 2)
    assert name in fault.message
    assert "model.blocks" in fault.hint


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (["fc1"], "leave out fc2.weight"),
        (["fc1", "fc2", "fc3"], "'fc3' matches nothing"),
        ({"a": "fc*", "b": "fc2"}, "both contain fc2.weight"),
    ],
)
def test_wrong_blocks_are_named(blocks: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        Net(PlainMLP, "own", blocks=blocks, inputs=VECTORS)
    assert caught.value.errors[0].path == "blocks"


class BlocksOnTheClass(PlainMLP):
    blocks = ("fc1", "fc2")


def test_a_class_declares_its_blocks() -> None:
    net = Net(BlocksOnTheClass, "own", inputs=VECTORS)
    assert list(net.blocks) == ["fc1", "fc2"]
    assert not net.head_error


def test_a_head_that_is_not_the_output_is_named() -> None:
    net = Net(SecondOutput, "own", blocks=["body", "head", "other"], inputs=VECTORS)
    assert "the head other is not the output" in net.head_error


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x)


class Remembering(nn.Module):
    """Keeps a mean of its inputs in some way."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.fc, self.where = nn.Linear(12, 4), where
        if where == "attribute":
            self.mean = torch.zeros(12)
        else:
            self.register_buffer("mean", torch.zeros(12), persistent=where != "hidden buffer")

    def forward(self, x: Tensor) -> Tensor:
        if (self.where == "assigned buffer" and self.training) or self.where == "attribute":
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        elif self.where == "buffer in evaluation" or self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return self.fc(x - self.mean)


class CountingInPython(PlainMLP):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += self.training
        return super().forward(x) * min(1.0, self.step / 10 + 0.1)


class Growing(nn.Module):
    """A mean that begins as None, or a bank of features."""

    def __init__(self, seen: Tensor | None) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(12, 4), seen

    def forward(self, x: Tensor) -> Tensor:
        mean = 0 if self.seen is None or not len(self.seen) else self.seen.mean(0)
        if self.training:
            rows = x.detach()
            self.seen = rows if self.seen is None else torch.cat([self.seen, rows])
        return self.fc(x - mean)


class Caching(PlainMLP):
    """Keeps its features, and a table that depends on the size of the batch; neither changes its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden = torch.zeros(0), None

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) != len(x):
            self.table = torch.ones(len(x))
        self.hidden = self.fc1(x)
        return super().forward(x * self.table[:, None])


def test_a_cache_that_changes_no_logits_is_accepted() -> None:
    assert Net(Caching, "own", inputs=VECTORS).count_parameters() == 140


class Keeping(PlainMLP):
    """Adds to a mean in a dict that its logits do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.means = {"hidden": 0}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        self.means["hidden"] = self.means["hidden"] + hidden.detach().mean()
        return self.fc2(hidden)


def test_a_module_that_keeps_a_tensor_of_a_stack_is_not_stacked() -> None:
    assert "vmap cannot run its forward" in Net(Keeping, "own", inputs=VECTORS).unstackable


class Masked(PlainMLP):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))


class TwoInputs(PlainMLP):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc2(self.fc1(x) + y)


class Noisy(PlainMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class NumpyNoise(PlainMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + float(np.random.rand()))


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :4]


class WrongWidth(PlainMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :3]


class Text(PlainMLP):
    def forward(self, x: Tensor) -> Any:
        return "four"


class Squeezing(PlainMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Detaching(PlainMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Listing(PlainMLP):
    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(4, 4)]


def make_hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(12, 4))
    module[0].weight.register_hook(lambda slope: slope * 0.1)
    return module


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Squeezing, "of shape .4. for 1 examples; wanted: logits of shape .1, 4."),
        (Detaching, "without a gradient, so that nothing could train; leave out `detach"),
        (
            Listing,
            "in more, a plain list, so that their weights would not train; use nn.ModuleList",
        ),
        (Counting, "changes calls, which would pass from client to client"),
        (partial(Remembering, "assigned buffer"), r"assigns the buffer mean, .* self.mean.copy_"),
        (partial(Remembering, "attribute"), "changes mean, which would pass from client to client"),
        (partial(Remembering, "hidden buffer"), "changes mean, which would pass from client to client"),
        (CountingInPython, "returns other logits for the same inputs .* such as a counter or a list"),
        (partial(Growing, None), "changes seen, which would pass from client to client"),
        (partial(Growing, torch.zeros(0, 12)), "changes seen, which would pass from client to client"),
        (partial(Remembering, "buffer in evaluation"), "changes mean in evaluation mode"),
        (Masked, "buffer mask is not finite, .* register it with persistent=False"),
        (TwoInputs, "does not take a batch of numbers of shape .3, 12."),
        (Noisy, "draws random numbers in evaluation mode"),
        (NumpyNoise, "draws from NumPy's generator"),
        (NoParameters, "has no parameters that train"),
        (make_hooked, "parameter 0.weight has a hook .register_hook., .* let forward use `mask"),
        (WrongWidth, "of shape .3, 3. for 3 examples; wanted: logits of shape .3, 4."),
        (Text, "returns str"),
    ],
)
def test_what_cannot_serve_is_refused_by_name(build: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Net(build, "own", inputs=VECTORS)


def make_mismatched(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden + 1, 4))


@pytest.mark.parametrize("hidden", [8, 100_000])
def test_a_chain_that_does_not_take_its_inputs_is_refused(hidden: int) -> None:
    """A small one and a large one, which runs on torch's meta device."""
    net = Net(partial(make_mismatched, hidden), "own", inputs=VECTORS)
    with pytest.raises(ValueError, match=r"own does not take a batch of numbers of shape \[2, 12\]: Runtime"):
        check_outputs(net)


class ReadsNumbers(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() < 1e9 else x.new_zeros(len(x), self.out_features)


def test_a_large_chain_that_reads_numbers_is_not_refused() -> None:
    check_outputs(
        Net(lambda: nn.Sequential(ReadsNumbers(12, 100_000), nn.Linear(100_000, 4)), inputs=VECTORS)
    )


def test_a_buffer_that_changes_in_place_travels() -> None:
    net = Net(partial(Remembering, "buffer"), "own", inputs=VECTORS)
    params = {key: value.clone() for key, value in net.init(1).items()}
    with net.training_mode():
        net(params, torch.ones(4, 12))
    assert params["mean"].tolist() == pytest.approx([0.1] * 12)


def make_with_one_activation() -> nn.Module:
    activation = nn.ReLU()
    body = nn.Sequential(nn.Linear(12, 8), activation, nn.Linear(8, 8), activation)
    return nn.Sequential(nn.Linear(12, 12), activation, body, activation, nn.Linear(8, 4))


def test_a_layer_that_is_used_twice_runs_twice() -> None:
    net, x = Net(make_with_one_activation, "own"), torch.randn(5, 12)
    params = net.init(0)
    module = make_with_one_activation()
    module.load_state_dict(params)
    assert torch.equal(net(params, x), module(x))
    assert list(net.block_names) == ["0", "1", "2", "3", "4"]


class Blurring(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 1


def test_only_torchs_own_pooling_goes_before_an_activation() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), Blurring(2), nn.Flatten(), nn.Linear(18, 4))

    net, x = Net(make, "own", inputs=InputForm((1, 8, 8), 0, (4,))), torch.randn(3, 1, 8, 8)
    module = make()
    module.load_state_dict(params := net.init(0))
    assert torch.equal(net(params, x), module(x))


def make_patched(part: str) -> nn.Module:
    """A chain with a `forward` of its own on one layer, on a block, or on the whole."""
    chain = nn.Sequential(nn.Linear(12, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4))
    module = chain.get_submodule(part)
    plain = module.forward
    module.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign]
    return chain


@pytest.mark.parametrize("part", ["0", "1", "1.0", ""])
def test_a_patched_forward_of_a_layer_runs(part: str) -> None:
    net, x = Net(partial(make_patched, part), "own", inputs=VECTORS), VECTORS.make_examples()
    module = make_patched(part)
    module.load_state_dict(params := net.init(0))
    assert torch.equal(net(params, x), module(x))


def test_running_statistics_of_other_layers_are_not_stacked() -> None:
    def make() -> nn.Module:
        norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        return nn.Sequential(nn.Unflatten(1, (2, 6)), norm, nn.Flatten(), nn.Linear(12, 4))

    assert "running statistics" in Net(make, "own", inputs=VECTORS).unstackable


class OwnNorm(nn.BatchNorm1d):
    """As timm's layers with an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


def test_a_batch_norm_of_a_library_takes_a_batch_of_one() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), OwnNorm(8), nn.Linear(8, 4))

    net = Net(make, "own", inputs=VECTORS)
    params = {key: value.clone() for key, value in net.init(0).items()}
    with net.training_mode():
        assert net(params, torch.ones(1, 12)).shape == (1, 4)
        assert (params["1.running_mean"] == 0).all()
        net(params, torch.randn(4, 12))
    assert (params["1.running_mean"] != 0).all()


def test_a_weight_without_use_does_not_keep_clients_from_a_stack() -> None:
    class Unused(PlainMLP):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(3, 3)

    population = federation_of(Net(Unused, "own", inputs=VECTORS), [16, 24, 19])
    *_, last = simulate(FedAvg(), population, StackedPool(FedAvg(), population, 3))
    assert last.engine["stacked"] == {"together": 3, "alone": {}}


def test_frozen_blocks_keep_their_running_statistics() -> None:
    net = Net(Normalised, "own", blocks=["conv", "norm", "fc"], inputs=InputForm((3, 8, 8), 0, (4,)))
    params = {key: value.clone() for key, value in net.init(1).items()}
    before = params["norm.running_mean"].clone()
    with net.training_mode(frozen=["norm"]):
        net(params, torch.randn(4, 3, 8, 8))
    assert torch.equal(params["norm.running_mean"], before)
    with net.training_mode():
        net(params, torch.randn(4, 3, 8, 8))
    assert not torch.equal(params["norm.running_mean"], before)


def test_tokens_are_inputs_of_whole_numbers() -> None:
    assert TOKENS.make_examples().dtype == torch.long
