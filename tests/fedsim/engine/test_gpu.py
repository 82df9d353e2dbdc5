"""Clients on a real GPU: results repeat bit for bit, agree with a CPU's, and local loops never wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, KDIA, FedAvg, FedProx
from fedsim.base import tree
from fedsim.base.precision import Precision, lower_precision, use_precision
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining
from fedsim.data.dataset import Dataset, Examples, Normalise
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.stacking import grouping, stacked
from fedsim.stacking.graph_replay import CudaRecording
from fedsim.training import local_loop
from tests.fedsim.federations import partition
from tests.fedsim.methods import QUICK, quick
from tests.fedsim.stacks import close, pictures, small, without_unsteady
from tests.fedsim.task_federations import FEDERATIONS, task_federation

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

GPU = torch.device("cuda")


def run(
    algorithm: Algorithm, population: Population, stack_size: int = 1, device: str = "cuda", **more: Any
) -> list[RoundResult]:
    """Every round, with the server on the same device; personal models are scored at the end."""
    made = (algorithm, population)
    pool = StackedPool(*made, stack_size, device, **more) if stack_size > 1 else SerialPool(*made, device)
    return list(simulate(*made, pool, personal="last", device=device))


def digests(results: list[RoundResult]) -> list[str]:
    return [result.digest for result in results]


def figures(results: list[RoundResult]) -> list[str]:
    """As text, in which NaN equals NaN."""
    return [f"{result.memory_digest} {dict(result.metrics)} {result.personal}" for result in results]


BRIEF = {"fedkd": {"distance_by": "kl"}}
"""Steps of Adam along the signs of an L1 distance drift apart, from a rounding error on."""


@pytest.mark.parametrize("stack_size", [1, 3])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_repeats_bit_for_bit_and_agrees_with_a_cpu(name: str, stack_size: int) -> None:
    algorithm, population = replace(quick(name), **BRIEF.get(name, {})), small(rounds=2)
    one, again = (run(algorithm, population, stack_size) for _ in range(2))
    assert digests(one) == digests(again)
    assert figures(one) == figures(again)
    on_cpu = run(algorithm, population, device="cpu")
    close(without_unsteady(one[0].state), without_unsteady(on_cpu[0].state), 1e-3)


@contextmanager
def refused_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within local loops, alone or in stacks, torch raises an error at every wait for the GPU.

    The check of the mask, once in a stack, may wait.
    """

    def in_mode(mode: str, work: Any) -> Any:
        def checked(*args: Any, **named: Any) -> Any:
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode(mode)
            try:
                return work(*args, **named)
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return checked

    loop = stacked._StackedLoop
    with monkeypatch.context() as patched:
        patched.setattr(local_loop, "run_sgd", in_mode("error", local_loop.run_sgd))
        patched.setattr(grouping, "run_stacked_loop", in_mode("error", stacked.run_stacked_loop))
        patched.setattr(loop, "_check_mask", in_mode("default", loop._check_mask))
        yield


@pytest.mark.parametrize("stack_size", [1, 3])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_local_loops_never_wait_for_the_gpu(
    name: str, stack_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, population = quick(name), small(rounds=2)
    with refused_waits(monkeypatch):
        last = run(algorithm, population, stack_size)[-1]
    if stack_size > 1:
        assert set(last.engine["stacked"]["alone"]) <= {"no other loop was like it"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox", "moon", "ditto", "feddyn"])
def test_graphs_end_where_normal_steps_end(name: str) -> None:
    """Steps of stacks that torch replays as CUDA graphs."""
    local = LocalTraining(epochs=12, batch_size=4, lr=0.05, momentum=0.9)
    algorithm, population = quick(name), small(rounds=2, local=local)
    normal, recorded = (run(algorithm, population, 4, recorder=r) for r in (None, CudaRecording))
    again = run(algorithm, population, 4, recorder=CudaRecording)
    assert digests(recorded) == digests(again)
    assert recorded[-1].engine["stacked"] == normal[-1].engine["stacked"]
    close(recorded[-1].state, normal[-1].state, 1e-4)


@pytest.mark.parametrize("stack_size", [1, 2])
@pytest.mark.parametrize("task", FEDERATIONS)
def test_scores_of_every_learning_task_repeat(task: str, stack_size: int) -> None:
    algorithm, population = FedAvg(), task_federation(task)
    one, again = (run(algorithm, population, stack_size) for _ in range(2))
    assert digests(one) == digests(again)
    assert figures(one) == figures(again)
    on_cpu = run(algorithm, population, device="cpu")
    close(one[-1].state, on_cpu[-1].state, 1e-3)


def images(
    model: str, batch_size: int = 8, examples: int = 24, clients: int = 2, **params: Any
) -> Population:
    """Clients of noise of CIFAR-10's shape."""
    draw, shape, count = np.random.default_rng(0), (3, 32, 32), clients * examples
    noise = Examples(draw.integers(0, 256, (count, *shape), np.uint8), draw.integers(0, 10, count))
    data = Dataset(
        name="noise",
        train=noise,
        test=noise,
        num_classes=10,
        input_shape=shape,
        classes=tuple(map(str, range(10))),
        normalise=Normalise(scale=255.0),
    )
    local = LocalTraining(epochs=1, batch_size=batch_size, lr=0.01, momentum=0.9)
    plain = small(rounds=1, local=local, cohort_size=clients)
    net = make_net(model, input_shape=shape, num_classes=10, **params)
    return replace(plain, dataset=data, nets=(net,), partition=partition([examples] * clients))


NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg_cnn": ("fedavg_cnn", {}),
    "fedgen_cnn": ("fedgen_cnn", {}),
    "googlenet": ("googlenet", {}),
    "lenet5": ("lenet5", {}),
    "logistic": ("logistic", {}),
    "mlp": ("mlp", {}),
    "moon_cnn": ("moon_cnn", {}),
    "resnet9": ("resnet9", {}),
    "resnet18": ("resnet18", {}),
    "resnet18 by group": ("resnet18", {"norm": "group"}),
    "resnet50": ("resnet50", {}),
    "vgg16": ("vgg16", {}),
    "vgg16 with the large classifier": ("vgg16", {"classifier": "large"}),
    "mobilenet_v3_small": ("torchvision", {"arch": "mobilenet_v3_small"}),
    "squeezenet1_1": ("torchvision", {"arch": "squeezenet1_1"}),
}


@pytest.mark.parametrize("net", NETS)
def test_every_model_repeats_bit_for_bit(net: str) -> None:
    model, params = NETS[net]
    population = images(model, **params)
    for stack_size in (1, 2):
        one, again = (run(FedAvg(), population, stack_size) for _ in range(2))
        assert digests(one) == digests(again)
        assert figures(one) == figures(again)


def test_a_stack_that_needs_too_much_memory_is_halved() -> None:
    """The digest is that of a run with the smaller stack."""
    population = images("resnet18", batch_size=32, examples=64, clients=8, norm="group")
    expected = {size: digests(run(FedAvg(), population, size)) for size in (1, 2, 4)}
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.reset_peak_memory_stats()
    run(FedAvg(), population, 8)
    most = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.8 * most / total)
    try:
        found = run(FedAvg(), population, 8)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found[-1].engine["width"] in expected
    assert digests(found) == expected[found[-1].engine["width"]]


def _relative_error(precision: Precision, work: Any, *parts: torch.Tensor) -> float:
    """Of single precision on the GPU, to double precision on the CPU."""
    exact = work(*(part.double().cpu() for part in parts))
    with use_precision(precision, GPU), lower_precision(precision, GPU):
        found = work(*parts)
    return float((found.double().cpu() - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("float32", 0.0, 1e-5), ("tf32", 5e-5, 2e-3), ("bf16", 5e-4, 2e-2)]
)
def test_a_precision_is_what_its_name_says(precision: Precision, least: float, most: float) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, device=GPU), torch.randn(512, 512, device=GPU)
    assert least <= _relative_error(precision, torch.matmul, a, b) <= most
    x, kernel = torch.randn(16, 64, 32, 32, device=GPU), torch.randn(64, 64, 3, 3, device=GPU)
    assert least <= _relative_error(precision, torch.conv2d, x, kernel) <= most


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("stack_size", [1, 2])
def test_lower_precisions_repeat_and_are_not_float32(precision: Precision, stack_size: int) -> None:
    plain = images("moon_cnn")
    local = replace(plain.settings.local, precision=precision)
    lowered = replace(plain, settings=replace(plain.settings, local=local))
    one, again = (run(FedAvg(), lowered, stack_size) for _ in range(2))
    assert digests(one) == digests(again)
    assert digests(one) != digests(run(FedAvg(), plain, stack_size))


def test_states_and_generators_come_home_to_the_cpu() -> None:
    """What is kept between rounds takes no memory of the GPU."""
    for algorithm in (KDIA(**QUICK["kdia"]), quick("scaffold"), FedProx()):
        for result in run(algorithm, small(rounds=2)):
            held = {field.name: getattr(result.state, field.name) for field in fields(result.state)}
            leaves = [leaf for _, leaf in tree.leaves(held) if isinstance(leaf, torch.Tensor)]
            assert {leaf.device.type for leaf in leaves} == {"cpu"}


def test_pictures_agree_with_a_cpu() -> None:
    population = pictures(rounds=3)
    for stack_size in (1, 3):
        close(
            run(FedAvg(), population, stack_size)[-1].state,
            run(FedAvg(), population, device="cpu")[-1].state,
            1e-3,
        )
