"""Number types of local steps: what is lowered, and what stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base.precision import _flags, use_precision
from fedsim.clients.population import Population
from fedsim.core import Batch, ClientTask, Context, LocalTraining
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import SettingsError, SpecError
from fedsim.models.net import Params
from jobs.run.checkpoint_policy import describe_experiment
from jobs.spec import parse_spec
from tests.fedsim.federations import federation, with_settings
from tests.fedsim.methods import quick


@dataclass(frozen=True, kw_only=True)
class Seen(FedAvg):
    """Says in which number type a local step multiplies."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        product, weights = batch.x @ batch.x.transpose(0, 1), params["head.weight"]
        if (product.dtype, weights.dtype) != (torch.bfloat16, torch.float32):
            raise TypeError(f"{weights.dtype} are multiplied in {product.dtype}")
        return super().loss(ctx, task, params, batch)


def in_bf16() -> Population:
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1, momentum=0.9, precision="bf16")
    return federation([3, 8, 11, 20], rounds=2, local=local)


def test_local_steps_multiply_in_bfloat16_and_everything_else_stays_in_single_precision() -> None:
    population = in_bf16()
    *_, serial = simulate(Seen(), population, SerialPool(Seen(), population))
    *_, stacked = simulate(Seen(), population, StackedPool(Seen(), population, 4))
    exact = with_settings(population, local=replace(population.settings.local, precision="float32"))
    *_, single = simulate(FedAvg(), exact, SerialPool(FedAvg(), exact))
    assert stacked.engine["stacked"]["together"] > 0
    for key, value in single.state.params.items():
        assert serial.state.params[key].dtype == torch.float32
        # 8 bits of each factor, a dozen steps of momentum
        for other in (serial, stacked):
            torch.testing.assert_close(other.state.params[key], value, rtol=0.05, atol=0.05)
        assert not torch.equal(serial.state.params[key], value)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_trains_in_bfloat16(name: str) -> None:
    population, algorithm = in_bf16(), quick(name)
    for pool in (SerialPool(algorithm, population), StackedPool(algorithm, population, 4)):
        *_, last = simulate(algorithm, population, pool)
        assert set(last.engine.get("stacked", {}).get("alone", {})) <= {"no other loop was like it"}


def test_tf32_is_refused_where_there_is_no_gpu() -> None:
    population = federation(local=LocalTraining(epochs=1, batch_size=32, precision="tf32"))
    pool = SerialPool(FedAvg(), population)
    with pytest.raises(SettingsError, match="these clients train on a CPU"):
        list(simulate(FedAvg(), population, pool))
    with pytest.raises(SpecError, match=r"the workers have none .got 'tf32'.") as raised:
        parse_spec({"algorithm": "fedavg", "local": {"precision": "tf32"}})
    assert [error.path for error in raised.value.errors] == ["local.precision"]
    asked = {"algorithm": "fedavg", "local": {"precision": "tf32"}, "resources": {"gpus_per_worker": 0.5}}
    assert parse_spec(asked).local.precision == "tf32"


@pytest.mark.parametrize(("precision", "products"), [("float32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
def test_a_gpu_rounds_products_only_where_that_is_asked(precision: Any, products: str) -> None:
    """torch by itself has convolutions in TF32; what it had is put back."""
    before = _flags()
    with use_precision(precision, torch.device("cuda")):
        assert _flags() == (products, products, products, True)
        assert torch.backends.cudnn.allow_tf32 == (products == "tf32")  # torch refuses to read a mixture
    assert _flags() == before


def _kernels() -> tuple[bool, ...]:
    """Which kernels attention may take on a GPU: fused ones, then products of matrices."""
    cuda: Any = torch.backends.cuda
    fused = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()
    return (*fused, cuda.math_sdp_enabled())


def test_attention_on_a_gpu_takes_no_kernel_that_adds_in_any_order() -> None:
    before = _kernels()
    with use_precision("float32", torch.device("cpu")):
        assert _kernels() == before
    with use_precision("float32", torch.device("cuda")):
        assert _kernels() == (False, False, False, True)
    assert _kernels() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a CPU has no such kernels")
def test_gradients_of_attention_over_long_texts_are_the_same_again() -> None:
    """With a mask in single precision, for which torch would take the kernel that is not."""
    torch.manual_seed(0)
    parts = [torch.randn(4, 4, 300, 16, device="cuda", requires_grad=True) for _ in range(3)]
    mask = torch.zeros(4, 1, 300, 300, device="cuda").masked_fill(
        torch.arange(300, device="cuda") > 250, -1e9
    )
    with use_precision("float32", torch.device("cuda")):
        found = [
            torch.autograd.grad(F.scaled_dot_product_attention(*parts, attn_mask=mask).square().sum(), parts)
            for _ in range(5)
        ]
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], again, strict=True))


def test_a_precision_is_part_of_what_a_run_is() -> None:
    plain = describe_experiment(parse_spec({"algorithm": "fedavg"}))
    # Checkpoints of before there was a choice know nothing of it.
    assert "precision" not in plain["local"]
    lowered = describe_experiment(parse_spec({"algorithm": "fedavg", "local": {"precision": "bf16"}}))
    assert lowered != plain
