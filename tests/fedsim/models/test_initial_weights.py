"""A run can begin from weights of the user's own, on every pool, and names every weight that does not fit."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedsim.algorithms import FedAvg, FedPer
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.expert import train_expert
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.run_models import RunModels
from fedsim.engine.simulation import simulate
from fedsim.errors import SpecError
from fedsim.models import make_net
from fedsim.models.initial_weights import InitialWeights, parse_weights
from fedsim.models.net import InputForm, Net
from tests.fedsim.federations import federation


class Mixed(nn.Module):
    """Frozen, trained, tied and counted tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 4)
        self.again = nn.Linear(12, 4)
        self.again.weight, self.again.bias = self.head.weight, self.head.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.norm(self.frozen(x)))


def mixed(initial: InitialWeights | None = None) -> Net:
    net = Net(Mixed, inputs=InputForm((12,)))
    if initial is not None:
        net.load_weights(initial)
    return net


def mlp(initial: InitialWeights | None = None) -> Net:
    return make_net("mlp", input_shape=(12,), num_classes=4, initial=initial)


def torch_file(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def weights_of(net: Net, seed: int = 99, **options: Any) -> InitialWeights:
    return parse_weights(save(net.init(seed)), "w", **options)


def faults_of(initial: InitialWeights, net: Net) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        net.load_weights(initial)
    [fault] = caught.value.errors
    return fault.path, fault.message


@pytest.mark.parametrize("pack", [save, torch_file], ids=["safetensors", "torch"])
def test_a_model_begins_from_the_file_whatever_the_seed(pack: Any) -> None:
    state = mlp().init(99)
    net = mlp(parse_weights(pack({key: value.bfloat16() for key, value in state.items()}), "w"))
    for made in (net.init(0), net.init(1, 1), pickle.loads(pickle.dumps(net)).init(2), net.cached_init(3)):
        assert all(torch.equal(made[key], value.bfloat16().float()) for key, value in state.items())
        assert list(made) == list(state)
    net.init(0)[net.keys[0]].zero_()
    assert net.init(0)[net.keys[0]].any()


def test_frozen_and_tied_parameters_are_taken_under_any_name() -> None:
    torch.manual_seed(5)
    trained, x = Mixed().eval(), torch.randn(3, 12)
    state = trained.state_dict()
    for left_out in ("head", "again"):
        part = {key: value for key, value in state.items() if not key.startswith(left_out)}
        net = mixed(parse_weights(torch_file(part), "w"))
        assert set(net.init(0)) == {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"} | {
            "head.weight",
            "head.bias",
        }
        for each in (net, pickle.loads(pickle.dumps(net))):
            assert torch.equal(each(each.init(0), x), trained(x))
    # The final model of a run has no frozen parameters: they stay as the model makes them.
    keys = {key: state[key] for key in mixed().keys}
    assert torch.equal(mixed(parse_weights(save(keys), "w")).init(0)["head.bias"], state["head.bias"])


def frozen_first() -> nn.Module:
    layers = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    layers[0].requires_grad_(False)
    return layers


def test_a_frozen_layer_of_a_chain_runs_with_its_own_weights_or_those_of_the_file() -> None:
    net, x = Net(frozen_first, inputs=InputForm((12,))), torch.randn(3, 12)
    assert net.is_chain
    assert net.keys == ("2.weight", "2.bias")
    built = net.module
    built.load_state_dict(net.init(0), strict=False)
    assert torch.equal(net(net.init(0), x), built(x))
    torch.manual_seed(7)
    trained = frozen_first()
    net.load_weights(parse_weights(save(trained.state_dict()), "w"))
    for each in (net, pickle.loads(pickle.dumps(net))):
        assert torch.equal(each(each.init(0), x), trained(x))


def test_the_model_of_a_run_has_the_frozen_weights_that_came_from_a_file() -> None:
    """A further run may begin from it: nothing else of the run has these weights."""
    population = federation(rounds=1)

    def run(net: Net) -> dict[str, Any]:
        algorithm, own = FedAvg(), replace(population, nets=(net,))
        models = RunModels(algorithm, own)
        for result in simulate(algorithm, own, SerialPool(algorithm, own)):
            models.add(result)
        return models.export_global()

    def make(initial: InitialWeights | None = None) -> Net:
        net = Net(frozen_first, inputs=InputForm((12,)))
        if initial is not None:
            net.load_weights(initial)
        return net

    torch.manual_seed(7)
    frozen = frozen_first().state_dict()
    assert set(run(make())) == {"2.weight", "2.bias"}
    first = run(make(parse_weights(save(frozen), "w")))
    assert np.array_equal(first["0.weight"], frozen["0.weight"].numpy())
    again = make(parse_weights(save({key: torch.tensor(value) for key, value in first.items()}), "w"))
    assert np.array_equal(run(again)["0.weight"], frozen["0.weight"].numpy())


def test_a_file_of_a_parallel_wrapper_says_what_to_save() -> None:
    wrapped = {f"module.{key}": value for key, value in mlp().init(0).items()}
    with pytest.raises(SpecError) as caught:
        mlp().load_weights(parse_weights(save(wrapped), "w"))
    assert caught.value.errors[0].hint.startswith("save the state dict of the module inside the wrapper")


def test_every_weight_that_does_not_fit_is_named_at_once() -> None:
    state = mlp().init(0)
    first, last = min(state), list(state)[-1]
    wrong = {f"module.{key}": value for key, value in state.items()} | {last: torch.zeros(7)}
    path, message = faults_of(parse_weights(save(wrong), "w"), mlp())
    assert path == "init"
    assert f"the file lacks {next(iter(state))}" in message
    assert f"the model has no module.{first}" in message
    assert f"{last} is [7] in the file and [4] in the model" in message


class Adapted(nn.Module):
    """As peft wraps a layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head = nn.Module(), nn.Module()
        self.fc1.base_layer, self.fc1.lora_A = nn.Linear(12, 8), nn.Linear(12, 2, bias=False)
        self.head.modules_to_save = nn.ModuleDict({"default": nn.Linear(8, 4)})

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1.base_layer(x) + self.fc1.lora_A(x).sum(1, keepdim=True)
        return self.head.modules_to_save["default"](hidden)


def test_adapters_begin_anew_on_plain_weights() -> None:
    net = Net(Adapted, "own", inputs=InputForm((12,), 0, (4,)))
    sizes = {"fc1.weight": (8, 12), "fc1.bias": (8,), "head.weight": (4, 8), "head.bias": (4,)}
    plain = {name: torch.randn(size) for name, size in sizes.items()}
    cold = net.init(0)
    net.load_weights(parse_weights(save(plain), "w"))
    warm = net.init(0)
    assert torch.equal(warm["fc1.base_layer.weight"], plain["fc1.weight"])
    assert torch.equal(warm["head.modules_to_save.default.bias"], plain["head.bias"])
    assert torch.equal(warm["fc1.lora_A.weight"], cold["fc1.lora_A.weight"])
    nothing = parse_weights(save(plain), "w", ignore=["fc1", "head"])
    assert "nothing of the file is loaded" in faults_of(nothing, net)[1]


def test_ignored_parameters_begin_anew() -> None:
    wider = make_net("mlp", input_shape=(12,), num_classes=9)
    initial = parse_weights(save({**wider.init(99), "extra": torch.zeros(1)}), "w", ignore=["head", "ex*"])
    net, cold = mlp(initial).init(3), mlp().init(3)
    kept = [key for key in net if not torch.equal(net[key], cold[key])]
    assert kept == [key for key in net if not key.startswith("head.")]
    assert faults_of(weights_of(mlp(), ignore=["hed"]), mlp())[0] == "init.ignore"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no weights", "it is neither a safetensors file nor one that torch.save wrote"),
        (torch_file({"epoch": 3, "state_dict": {}}), "no tensors: epoch, state_dict"),
        (torch_file([torch.zeros(1)]), "holds a list"),
        (torch_file(partial(print, "code")), "cannot be read"),
    ],
    ids=["noise", "training-state", "list", "code"],
)
def test_other_files_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        parse_weights(content, "w")
    assert caught.value.errors[0].path == "init"


def test_each_architecture_takes_its_part_of_a_file() -> None:
    file = save({"0/a": torch.zeros(1), "1/a": torch.ones(1)})
    assert [parse_weights(file, "w", part=part).values["a"].tolist() for part in (0, 1)] == [[0], [1]]
    with pytest.raises(SpecError, match="has no architecture number 2; it has 0, 1"):
        parse_weights(file, "w", part=2)


def warm(**settings: Any) -> Population:
    return replace(federation(**settings), nets=(mlp(weights_of(mlp())),))


def digests(algorithm: Algorithm, population: Population, pool: SerialPool, **options: Any) -> list[str]:
    return [each.digest for each in simulate(algorithm, population, pool, **options)]


def test_a_run_from_weights_is_a_run_from_a_server_state_with_them() -> None:
    population, algorithm = warm(), FedAvg()
    [_, *_] = found = digests(algorithm, population, SerialPool(algorithm, population))
    cold = federation()
    state = replace(algorithm.init_server_state(cold.context(0)), params=mlp().init(99))
    again = digests(algorithm, cold, SerialPool(algorithm, cold), resume=Checkpoint(0, state))
    assert found == again
    assert found != digests(algorithm, cold, SerialPool(algorithm, cold))


def test_stacked_clients_begin_from_the_weights_too() -> None:
    population, algorithm = warm(), FedPer()
    alone = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    stacked = list(simulate(algorithm, population, StackedPool(algorithm, population, 4)))
    for one, other in zip(alone, stacked, strict=True):
        assert all(
            torch.allclose(value, other.state.params[key], atol=1e-5)
            for key, value in one.state.params.items()
        )


def test_an_expert_depends_on_the_weights(tmp_path: Any) -> None:
    population = federation()
    for net in (mlp(), mlp(weights_of(mlp())), mlp(weights_of(mlp(), 5))):
        for _ in train_expert(population.dataset, net, epochs=1, seed=0, cache=tmp_path):
            pass
    files = [np.load(file) for file in tmp_path.iterdir()]
    assert len(files) == 3
