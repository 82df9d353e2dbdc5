"""CD2-pFed, and models cut by their channels: a small model by hand in NumPy, then what travels and stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import CD2PFed, FedAvg
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import Batch
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net, reads_tokens
from fedsim.models.net import InputForm, Net
from fedsim.techniques.channel_split import (
    Extent,
    count_private_channels,
    cuts,
    make_masks,
    replace_shared_part,
    shared_part,
)
from tests.fedsim.federations import federation
from tests.fedsim.models.cases import BUILT_IN
from tests.fedsim.replay import Array

SIZES = [3, 8, 11, 16, 20, 24, 30]
CHAINS = ["fedavg_cnn", "fedgen_cnn", "lenet5", "mlp", "moon_cnn", "resnet18", "resnet50", "resnet9", "vgg16"]


def small(**changes: Any) -> Population:
    return federation(SIZES, hidden=5, **{"rounds": 4, "cohort_size": 7, **changes})


@pytest.mark.slow
def test_which_models_are_chains_of_channels() -> None:
    for name in BUILT_IN:
        if reads_tokens(name):
            continue
        shape = (1, 32, 32) if name == "mel_cnn" else (3, 32, 32)
        net = make_net(name, input_shape=shape, num_classes=10)
        if name in CHAINS or name in ("mel_cnn", "resnet34", "vgg19"):
            assert set(cuts(net)) == set(net.keys)
            assert not CD2PFed().check_hyperparameters(net, 10)
        else:
            (fault,) = CD2PFed().check_hyperparameters(net, 10)
            assert (fault.path, fault.value) == ("name", "cd2_pfed")
    net = make_net("small_transformer", input_shape=(16,), num_classes=4, vocabulary=50)
    assert CD2PFed().check_hyperparameters(net, 10)


def test_layers_without_bias_have_private_channels() -> None:
    layers = [torch.nn.Linear(12, 8, bias=False), torch.nn.ReLU(), torch.nn.Linear(8, 4, bias=False)]
    net = Net(lambda: torch.nn.Sequential(*layers), "unbiased", inputs=InputForm((12,)))
    assert count_private_channels(net, share=0.5) == 4
    assert not CD2PFed().check_hyperparameters(net, 10)


def test_a_share_of_nine_tenths_keeps_nine_channels_of_ten() -> None:
    """The share may have risen round by round to a little less."""
    assert Extent((10, 3)).count_shared(0.8999999999999999) == 3


@pytest.mark.parametrize("name", ["moon_cnn", "resnet18", "fedgen_cnn"])
def test_one_half_of_a_model_does_not_see_the_other(name: str) -> None:
    """Whatever the private channels hold, the shared pass says the same, and the other way round."""
    net = make_net(name, input_shape=(3, 16, 16) if name != "moon_cnn" else (3, 32, 32), num_classes=4)
    share, x = 0.3, torch.randn(2, 3, *((32, 32) if name == "moon_cnn" else (16, 16)))
    params, halves = net.init(0), make_masks(net, share, x.device)
    other = replace_shared_part(net, net.init(1), shared_part(net, params, share), share)
    assert any(not torch.equal(other[key], params[key]) for key in net.parameters)

    def said(model: Any, mask: Any) -> torch.Tensor:
        return net({key: value * mask[key] if key in mask else value for key, value in model.items()}, x)

    torch.testing.assert_close(said(other, halves.shared), said(params, halves.shared))
    private = {key: params[key] + (1 - halves.private[key]) for key in net.parameters}
    torch.testing.assert_close(said({**params, **private}, halves.private), said(params, halves.private))
    assert (said(params, halves.private) - said(params, halves.shared)).abs().max() > 1e-4


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def test_the_loss_is_the_cross_entropy_and_both_divergences() -> None:
    """In the last of four rounds, 2 of 5 hidden units are private (0.5 * 5, rounded down)."""
    population = small()
    algorithm, net = CD2PFed(lambda_kd=0.7), population.nets[0]
    ctx, params = population.context(3), net.init(5)
    x, y = population.dataset.train.x[:6], np.array([0, 1, 2, 3, 0, 1])
    found = algorithm.loss(ctx, None, params, Batch(torch.from_numpy(x.copy()), torch.from_numpy(y)))  # type: ignore[arg-type]
    a, b, c, d = (
        params[key].double().numpy() for key in ("fc1.0.weight", "fc1.0.bias", "head.weight", "head.bias")
    )
    hidden = np.maximum(x.astype(np.float64) @ a.T + b, 0)
    whole = softmax(hidden @ c.T + d)
    shared, private = softmax(hidden[:, :3] @ c[:, :3].T + d), softmax(hidden[:, 3:] @ c[:, 3:].T + d)
    apart = (shared * np.log(shared / private)).sum(1) + (private * np.log(private / shared)).sum(1)
    expected = -np.log(whole[np.arange(6), y]).mean() + 0.7 / 2 * apart.mean()
    assert float(found) == pytest.approx(expected, rel=1e-5)
    one_sided = count_private_channels(net, algorithm.private_share(ctx, 1))  # 1/6 of 5 channels is none
    assert (one_sided, count_private_channels(net, algorithm.private_share(ctx, 3))) == (0, 2)


def test_without_private_channels_it_is_fedavg_bit_for_bit() -> None:
    population = small(cohort_size=4)
    plain, still = (
        list(simulate(method, population, SerialPool(method, population)))
        for method in (FedAvg(), CD2PFed(p_max=0.0))
    )
    assert [r.digest for r in still] == [r.digest for r in plain]
    assert [r.traffic for r in still[:-1]] == [r.traffic for r in plain[:-1]]


def test_what_travels_and_what_a_client_keeps() -> None:
    """p is 0, 1/6, 1/3, 1/2 of 5 channels: 0, 0, 1 and 2 are private. Then 65 + 24 (84, 72, ...) numbers."""
    population = small()
    algorithm = CD2PFed()
    pool = SerialPool(algorithm, population)
    sizes = {hidden: hidden * 13 + hidden * 4 + 4 for hidden in (5, 4, 3)}
    ups, downs, before = [5, 5, 4, 3], [5, 5, 5, 4], {}
    for result in simulate(algorithm, population, pool, personal="never"):
        at = result.round - 1
        assert result.traffic.up == 7 * 4 * sizes[ups[at]]
        assert result.traffic.down == 7 * 4 * sizes[downs[at]]
        ctx, own = population.context(at), pool.client_states()
        shared = shared_part(population.nets[0], result.state.params, algorithm.private_share(ctx, at))
        assert shared["fc1.0.weight"].shape == (ups[at], 12)
        stacked = {
            key: torch.stack(
                [
                    shared_part(population.nets[0], own[k][PRIVATE_PARAMS], algorithm.private_share(ctx, at))[
                        key
                    ]
                    for k in range(7)
                ]
            )
            for key in shared
        }
        for key, value in stacked.items():
            mean = np.average(value.double().numpy(), axis=0, weights=SIZES)
            np.testing.assert_allclose(shared[key].numpy(), mean, rtol=1e-5, atol=1e-7)
        if at == 3:
            check_a_visit(population, pool, algorithm, result.state, before)
        before = {"state": result.state, "own": {k: dict(own[k][PRIVATE_PARAMS]) for k in own}}


def check_a_visit(
    population: Population, pool: SerialPool, algorithm: CD2PFed, state: Any, before: Any
) -> None:
    """The last round once more: channel 4 was private before, channel 3 becomes it, 0 to 2 are shared."""
    ctx, loader = population.context(3), pool.worker.loader
    down = algorithm.broadcast(ctx, before["state"])
    task = loader.make_task(algorithm, ctx, 6, down, {}, {PRIVATE_PARAMS: before["own"][6]})
    start = algorithm.initial_params(ctx, task)
    for key, at in (("fc1.0.weight", 0), ("fc1.0.bias", 0), ("head.weight", 1)):
        came, own = before["state"].params[key], before["own"][6][key]
        assert torch.equal(start[key].select(at, 4), own.select(at, 4))
        assert torch.equal(start[key].narrow(at, 0, 4), came.narrow(at, 0, 4))
        assert not torch.equal(came.narrow(at, 0, 4), own.narrow(at, 0, 4))
    trained = algorithm.train_locally(ctx, task, start, ctx.net.parameters).params
    kept = pool.client_states()[6][PRIVATE_PARAMS]
    beta = 0.5 + 0.5 * 3 / 4
    torch.testing.assert_close(
        kept["fc1.0.weight"][3:], (1 - beta) * start["fc1.0.weight"][3:] + beta * trained["fc1.0.weight"][3:]
    )
    torch.testing.assert_close(kept["fc1.0.weight"][:3], trained["fc1.0.weight"][:3])
    after = loader.make_task_without_batches(
        algorithm, ctx, 6, algorithm.broadcast_personal(ctx, state), {}, {PRIVATE_PARAMS: kept}
    )
    model = algorithm.personalize(ctx, after)
    assert torch.equal(model["fc1.0.weight"][:3], state.params["fc1.0.weight"][:3])
    assert torch.equal(model["fc1.0.weight"][3:], kept["fc1.0.weight"][3:])


def test_who_never_came_has_the_first_values_where_nothing_comes_down() -> None:
    population = small()
    algorithm, net = CD2PFed(), population.nets[0]
    ctx, state = population.context(3), FedAvg().init_server_state(population.context(0))
    moved = type(state)(params=tree.map(lambda leaf: leaf + 1, state.params))
    task = SerialPool(algorithm, population).worker.loader.make_task_without_batches(
        algorithm, ctx, 0, algorithm.broadcast(ctx, moved), {}, None
    )
    model, first = algorithm.initial_params(ctx, task), net.init(population.settings.seed)
    assert torch.equal(model["fc1.0.weight"][:4], first["fc1.0.weight"][:4] + 1)
    assert torch.equal(model["fc1.0.weight"][4:], first["fc1.0.weight"][4:])
