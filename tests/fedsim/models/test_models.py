"""What holds for every model: shapes, gradients, blocks, seeds, travel, and Net against the module itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedsim.algorithms import FedAvg
from fedsim.base.parameters import find_parameter_faults, list_parameters
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import MODELS, make_net, reads_tokens, why_unstackable
from fedsim.models.net import Net
from tests.fedsim.federations import federation
from tests.fedsim.models.cases import ALL, BUILT_IN, DEFAULT, STACKABLE, STACKABLE_AND_LARGE, Case

LARGE = ("googlenet", "resnet50", "vgg16", "vgg19")
"""Models whose forward pass takes seconds; their smaller relatives have the same layers."""

QUICK = [case for case in DEFAULT if case.name not in LARGE]

every = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in ALL],
    ids=str,
)


def loss_of(net: Net, params: dict[str, Tensor], x: Tensor) -> Tensor:
    return net(params, x).square().mean()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "name", [name for name in BUILT_IN if not reads_tokens(name) and name != "small_unet"]
)
def test_shapes(name: str, channels: int) -> None:
    """On the meta device, so the largest cost nothing; no constant may live on another device."""
    net = make_net(name, input_shape=(channels, 32, 32), num_classes=7)
    params = {key: value for key, value in net.module.state_dict().items() if key in net.keys}
    assert all(value.is_meta for value in params.values())
    x = torch.empty(2, channels, 32, 32, device="meta")
    with net.training_mode():
        features = net.features(params, x)
        assert net.classify(params, features).shape == (2, 7)
    assert features.ndim == 2
    assert net(params, x).shape == (2, 7)


@every
def test_every_parameter_has_a_gradient(case: Case) -> None:
    net = case.net()
    params = net.init(1)
    moving = {key: params[key].requires_grad_() for key in net.parameters}
    with net.training_mode(), torch.random.fork_rng():
        torch.manual_seed(0)
        value = net({**params, **moving}, case.inputs(4)).square().sum()
        gradients = torch.autograd.grad(value, list(moving.values()))
    for key, gradient in zip(moving, gradients, strict=True):
        assert gradient.isfinite().all(), key
        assert gradient.abs().sum() > 0, key


@every
def test_net_is_the_module_bit_for_bit(case: Case) -> None:
    net, x = case.net(), case.inputs(3)
    params = net.init(2)
    module = net.build()
    module.load_state_dict(params, strict=False)
    assert torch.equal(net(params, x), module.eval()(x))

    with net.training_mode(), torch.random.fork_rng():
        torch.manual_seed(5)
        ours = net(params, x)
        torch.manual_seed(5)
        assert torch.equal(ours, module.train()(x))
    theirs = module.state_dict()
    assert all(torch.equal(params[key], theirs[key]) for key in net.keys)
    assert torch.equal(net(params, x), module.eval()(x))


@every
def test_statistics_follow_training_in_the_callers_tensors(case: Case) -> None:
    net, x = case.net(), case.inputs(3)
    params = net.init(2)
    before = {key: value.clone() for key, value in params.items()}
    net(params, x)
    with net.training_mode():
        with net.evaluation_mode():
            net(params, x)
        assert all(torch.equal(params[key], before[key]) for key in net.keys)
        net(params, x)
    changed = {key for key in net.keys if not torch.equal(params[key], before[key])}
    assert changed == set(net.keys) - set(net.parameters)


@every
def test_blocks_partition_the_keys_and_compose(case: Case) -> None:
    net, x = case.net(), case.inputs(2)
    params = net.init(0)
    assert tuple(key for block in net.blocks.values() for key in block) == net.keys
    assert net.head | net.body == set(net.keys)
    assert not net.head & net.body
    assert net.head == {"head.weight", "head.bias"}
    step = x
    names = net.block_names
    for start, stop in zip(names, [*names[1:], None], strict=True):
        step = net.run_blocks({key: params[key] for key in net.blocks[start]}, step, start, stop)
    assert torch.equal(step, net(params, x))


@every
def test_initial_values_depend_on_the_seed_alone(case: Case) -> None:
    net = case.net()
    first = net.init(3)
    torch.rand(1)
    state = torch.get_rng_state()
    again, other = case.net().init(3), net.init(4)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in net.keys)
    assert tuple(first) == net.keys
    assert not torch.equal(first["head.weight"], other["head.weight"])


@every
def test_a_net_travels_as_its_recipe(case: Case) -> None:
    net, x = case.net(), case.inputs(2)
    sent = pickle.dumps(net)
    there = pickle.loads(sent)
    assert len(sent) < 500
    assert (there.name, there.keys, there.blocks) == (net.name, net.keys, net.blocks)
    params = net.init(0)
    assert torch.equal(there(params, x), net(params, x))


@pytest.mark.parametrize(
    "case",
    [*STACKABLE, *(pytest.param(case, marks=pytest.mark.slow) for case in STACKABLE_AND_LARGE)],
    ids=str,
)
def test_stacked_clients_equal_one_by_one(case: Case) -> None:
    net = case.net()
    assert net.stackable
    clients = [net.init(seed) for seed in range(2)]
    # In double precision, because kernels add in another order when stacked.
    wide = [{key: value.double() for key, value in params.items()} for params in clients]
    inputs = [case.inputs(2, seed) for seed in range(2)]
    inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    stacked = {key: torch.stack([params[key] for params in wide]) for key in net.keys}
    with net.training_mode():
        gradient = grad(lambda params, x: loss_of(net, params, x))
        logits = vmap(net)(stacked, torch.stack(inputs))
        slopes = vmap(gradient)(stacked, torch.stack(inputs))
        for number, (params, x) in enumerate(zip(wide, inputs, strict=True)):
            torch.testing.assert_close(logits[number], net(params, x), rtol=1e-9, atol=1e-12)
            for key, slope in gradient(params, x).items():
                torch.testing.assert_close(slopes[key][number], slope, rtol=1e-7, atol=1e-11)


def test_what_cannot_be_stacked_says_why() -> None:
    reasons = {str(case): case.net().unstackable for case in ALL if case not in STACKABLE}
    assert reasons.pop("vgg19-1x-none") == ""
    running = {name for name, reason in reasons.items() if "running statistics" in reason}
    assert {name.split("-")[0] for name in running} == {
        "fedgen_cnn",
        "googlenet",
        "resnet9",
        "resnet18",
        "resnet50",
        "vgg16",
    }
    assert "dropout" in reasons["small_transformer-9x-0.3"]
    assert not make_net("vgg16", input_shape=(3, 32, 32), num_classes=2).stackable


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "distilbert"])
def test_what_is_told_of_defaults_is_what_is_built(name: str) -> None:
    shape, vocabulary = ((9,), 30) if reads_tokens(name) else ((3, 32, 32), 0)
    net = make_net(name, input_shape=shape, num_classes=5, vocabulary=vocabulary)
    assert why_unstackable(name) == net.unstackable


def test_only_dropout_is_stochastic() -> None:
    stochastic = [str(case) for case in ALL if case.net().stochastic]
    assert stochastic == ["googlenet-3x", "googlenet-1x-standard", "small_transformer-9x-0.3"]


class Noisy(nn.Module):
    """Drops out by a function, which no list of layers knows."""

    stochastic = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, self.training)


class Quiet(Noisy):
    """One that does not, as it says."""

    stochastic = False


def around(layer: nn.Module) -> Net:
    return Net(lambda: nn.Sequential(OrderedDict(body=layer, head=nn.Linear(12, 4))))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.FeatureAlphaDropout(0.1), "dropout draws"),
        (nn.MultiheadAttention(12, 2, dropout=0.1), "dropout draws"),
        (nn.LSTM(12, 12, num_layers=2, dropout=0.1), "dropout draws"),
        (nn.GRU(12, 12, num_layers=2, dropout=0.1), "dropout draws"),
        (nn.RReLU(), "RReLU draws"),
        (Noisy(), "Noisy draws"),
        (nn.FeatureAlphaDropout(0.0), ""),
        (nn.MultiheadAttention(12, 2), ""),
        (nn.LSTM(12, 12), ""),
        (Quiet(), ""),
    ],
)
def test_layers_that_draw_otherwise_are_known_or_say_so(layer: nn.Module, why: str) -> None:
    net = around(layer)
    assert net.stochastic == bool(why)
    assert net.unstackable.startswith(why)
    assert net.stackable == (not why)


@pytest.mark.parametrize("layer", [nn.RReLU(), Noisy()], ids=["RReLU", "Noisy"])
def test_what_they_draw_does_not_depend_on_the_process(layer: nn.Module) -> None:
    """Nor on what it has drawn before."""
    population, digests = replace(federation([9, 12], rounds=1), nets=(around(layer),)), []
    for chance in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(chance)
            results = simulate(FedAvg(), population, SerialPool(FedAvg(), population))
            digests.append([result.digest for result in results])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "params", "message"),
    [
        ("resnet18", (3, 7, 7), 0, {}, "at least 8x8; these are 7x7"),
        ("resnet18", (3, 28, 28), 0, {"stem": "standard"}, "at least 32x32"),
        ("vgg16", (1, 28, 28), 0, {}, "at least 32x32"),
        ("fedgen_cnn", (3, 40, 40), 0, {"form": "pooled"}, "at least 43x43"),
        ("moon_cnn", (784,), 0, {}, r"needs images .* shape \(784,\)"),
        (
            "mlp",
            (64,),
            30,
            {},
            "data has tokens; models of texts: causal_transformer, distilbert, python, small_transformer",
        ),
        ("small_transformer", (3, 32, 32), 0, {}, "needs texts as token numbers"),
        ("distilbert", (3, 32, 32), 0, {}, "needs texts as token numbers"),
        ("small_transformer", (9,), 30, {"width": 10, "heads": 4}, "10 is no multiple of 4"),
    ],
)
def test_inputs_that_a_model_cannot_take(
    name: str, shape: tuple[int, ...], vocabulary: int, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_net(name, input_shape=shape, num_classes=3, vocabulary=vocabulary, **params)


def test_the_smallest_images_that_are_taken() -> None:
    for name, side in (("resnet18", 8), ("googlenet", 8), ("resnet9", 8), ("vgg19", 32), ("fedgen_cnn", 4)):
        net = make_net(name, input_shape=(1, side, side), num_classes=3)
        params = {key: value for key, value in net.module.state_dict().items() if key in net.keys}
        assert net(params, torch.empty(2, 1, side, side, device="meta")).shape == (2, 3)


def test_catalogue() -> None:
    for name, function in MODELS.items():
        defaults = {
            p.name: next(iter(get_args(p.kind)), "x") if p.required else p.default
            for p in list_parameters(function)
        }
        assert find_parameter_faults(function, defaults) == [], name
        assert "vocabulary" not in defaults, name
    [fault] = find_parameter_faults(MODELS["resnet9"], {"norm": "layer"})
    assert "'batch', 'group'" in fault.message
    assert {case.name for case in DEFAULT} | {"distilbert", "resnet34", "vgg19"} == set(BUILT_IN)


def test_an_unknown_block_is_refused() -> None:
    net = make_net("lenet5", input_shape=(1, 28, 28), num_classes=3)
    with pytest.raises(ValueError, match="no block 'conv3'; its blocks: conv1, conv2, fc1, fc2, head"):
        net.run_blocks(net.init(0), torch.zeros(1, 1, 28, 28), stop="conv3")


def test_parts_of_moon_cnn() -> None:
    net = make_net("moon_cnn", input_shape=(3, 32, 32), num_classes=10)
    params, x = net.init(0), torch.randn(2, 3, 32, 32)
    maps = net.run_blocks(params, x, stop="fc1")
    assert maps.shape == (2, 16, 5, 5)
    assert net.run_blocks(params, maps, start="fc1", stop="projection").shape == (2, 84)
    assert net.features(params, x).shape == (2, 256)
    assert torch.equal(net.run_blocks(params, maps, start="fc1"), net(params, x))


def test_slow_libraries_are_imported_when_a_model_needs_them() -> None:
    code = (
        "import sys, fedsim.models; print(sorted({'torchvision', 'transformers', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
