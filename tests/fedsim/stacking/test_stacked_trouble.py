"""Stacked clients in trouble: losses that do not stack, errors, too little memory, wrong stack sizes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import FedAvg
from fedsim.core import Batch, ClientTask, ClientUpdate, Context
from fedsim.engine.faults import Chaos, Faults
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import ClientFailed, SettingsError
from fedsim.models import make_net
from fedsim.models.net import Params
from fedsim.stacking.lockstep import StackLockstep
from fedsim.stacking.mask_check import MASK_IGNORED, respects_mask
from fedsim.stacking.stacked import _StackedLoop
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import cross_entropy, masked_mean
from tests.fedsim.federations import federation, with_settings
from tests.fedsim.methods import quick
from tests.fedsim.stacks import close, run, small


@dataclass(frozen=True, kw_only=True)
class Asking(FedAvg):
    """A loss that asks a tensor for its value, which many clients at once cannot answer."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        value = super().loss(ctx, task, params, batch)
        return value if float(value.detach()) > 0 else 0 * value


def test_a_loss_that_cannot_be_stacked_runs_one_by_one_and_says_so() -> None:
    population = small(rounds=1)
    expected, _ = run(Asking(), population, SerialPool(Asking(), population))
    found, _ = run(Asking(), population, StackedPool(Asking(), population, 8))
    close(found.state, expected.state, 1e-6)
    assert found.engine["stacked"]["together"] == 0
    ((why, loops),) = found.engine["stacked"]["alone"].items()
    assert loops == 7
    assert "vmap" in why


@dataclass(frozen=True, kw_only=True)
class Keeping(FedAvg):
    """Every client keeps the server's own tensors."""

    stateful: ClassVar[bool] = True

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        return super().make_update(ctx, task, trained)._replace(client_state=task.broadcast["params"])


def test_no_two_clients_keep_one_tensor() -> None:
    """A stack computes with a shared tensor in another way, and neither Ray nor a checkpoint shares one."""
    population = small(rounds=1)
    pool = StackedPool(Keeping(), population, 8)
    run(Keeping(), population, pool)
    kept = [state["head.weight"].data_ptr() for state in pool.client_states().values()]
    assert len(set(kept)) == len(kept)


@dataclass(frozen=True, kw_only=True)
class Numbered(FedAvg):
    """A loss that reads the number of the client."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        return super().loss(ctx, task, params, batch) * (1 + task.client)


def test_a_loss_reads_the_number_of_its_own_client() -> None:
    algorithm, population = Numbered(), small(rounds=1)
    expected, _ = run(algorithm, population, SerialPool(algorithm, population))
    found, _ = run(algorithm, population, StackedPool(algorithm, population, 8))
    assert found.engine["stacked"] == {"together": 7, "alone": {}}
    close(found.state, expected.state, 1e-4)


@dataclass(frozen=True, kw_only=True)
class Smoothed(FedAvg):
    """Smoothed labels, with or without a thought for batches that are filled up."""

    heeds: bool = False

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        logits, y = ctx.net(params, batch.x), batch.y
        if not self.heeds:
            return F.cross_entropy(logits, y, label_smoothing=0.1)
        each = F.cross_entropy(logits, y, label_smoothing=0.1, reduction="none")
        return masked_mean(each, batch.mask)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("heeds", [True, False])
def test_a_loss_that_counts_padding_is_made_one_by_one_and_says_so(heeds: bool, precision: Any) -> None:
    algorithm, population = Smoothed(heeds=heeds), small(rounds=2)
    population = with_settings(population, local=replace(population.settings.local, precision=precision))
    expected, _ = run(algorithm, population, SerialPool(algorithm, population))
    found, _ = run(algorithm, population, StackedPool(algorithm, population, 8))
    close(found.state, expected.state, {"float32": 1e-4, "bf16": 0.05}[precision])
    alone = {} if heeds else {f"ValueError: {MASK_IGNORED}": 7}
    assert found.engine["stacked"] == {"together": 7 - sum(alone.values()), "alone": alone}


def test_a_loss_that_counts_padding_does_no_harm_where_there_is_none() -> None:
    population = federation([16] * 8, rounds=1)
    found, _ = run(Smoothed(), population, StackedPool(Smoothed(), population, 8))
    assert found.engine["stacked"] == {"together": 8, "alone": {}}


@pytest.mark.parametrize("heeds", [True, False])
def test_it_shows_even_where_every_loss_is_the_same(heeds: bool) -> None:
    """With zeros for weights every example costs log 4; inside a batch's noise there may be another one."""
    x, y = torch.randn(2, 6, 5), torch.tensor([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 3]])
    inner = Batch(x[1], y[1], torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]))

    def loss(params: Params, batch: Batch) -> Tensor:
        other = batch.noise["first"]
        each = F.cross_entropy(other.x @ params["head"], other.y, reduction="none")
        value = masked_mean(each, other.mask) if heeds else each.mean()
        return cross_entropy(batch.x @ params["head"], batch) + value

    weights = {"head": torch.zeros(5, 4)}
    batch = Batch(x[0], y[0], None, {"first": inner})
    assert respects_mask(loss, weights, batch) == heeds
    assert respects_mask(loss, {"head": weights["head"] + torch.inf}, batch) is None


@dataclass(frozen=True, kw_only=True)
class Distilling(FedAvg):
    """From some round on, a distance to the global model that counts padding; it is 0 at the global model."""

    since: int = 0

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        value = super().loss(ctx, task, params, batch)
        if ctx.round < self.since:
            return value
        with torch.no_grad():
            teacher = ctx.net(task.broadcast["params"], batch.x).log_softmax(-1)
        student = ctx.net(params, batch.x).log_softmax(-1)
        return value + 5 * (teacher.exp() * (teacher - student)).sum(-1).mean()


@pytest.mark.parametrize("since", [0, 1])
def test_a_term_is_found_out_in_the_round_and_at_the_weights_where_it_counts_padding(since: int) -> None:
    """Whatever the worker has trained before: another worker may train this stack as its first."""
    algorithm, population = Distilling(since=since), small(rounds=2)
    expected = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    found = list(simulate(algorithm, population, StackedPool(algorithm, population, 8)))
    alone = {"together": 0, "alone": {f"ValueError: {MASK_IGNORED}": 7}}
    stacked = {"together": 7, "alone": {}}
    assert [result.engine["stacked"] for result in found] == [stacked if since else alone, alone]
    close(found[-1].state, expected[-1].state, 1e-4)


@dataclass(frozen=True, kw_only=True)
class Lazy(FedAvg):
    """A loss that makes a net when it first needs it."""

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        other = make_net("mlp", input_shape=(12,), num_classes=4)
        return cross_entropy(other.run_blocks(params, batch.x, start="fc1"), batch)


def test_a_net_may_be_made_inside_of_a_stack() -> None:
    """Or the first stack of every process would not be one, and the bits depend on how many there are."""
    population = small(rounds=1)
    expected, _ = run(FedAvg(), population, StackedPool(FedAvg(), population, 8))
    found, _ = run(Lazy(), population, StackedPool(Lazy(), population, 8))
    assert (found.digest, found.engine) == (expected.digest, expected.engine)


@dataclass(frozen=True, kw_only=True)
class Choosy(FedAvg):
    """The client with 11 examples raises, before its training or in it."""

    when: str = "start"

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        if self.when == "start" and task.num_examples == 11:
            raise ZeroDivisionError("eleven")
        return super().initial_params(ctx, task)

    def gradient_correction(self, ctx: Context, task: ClientTask) -> Any:
        if self.when == "correction" and task.num_examples == 11:
            return {}
        return super().gradient_correction(ctx, task)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        if self.when == "finish" and task.num_examples == 11:
            raise ZeroDivisionError("eleven")
        return super().make_update(ctx, task, trained)


@pytest.mark.parametrize("when", ["start", "correction", "finish"])
def test_an_error_meets_the_client_whose_it_is(when: str) -> None:
    algorithm, population = Choosy(when=when), small(rounds=1)
    with pytest.raises(ClientFailed, match="client 2"):
        run(algorithm, population, StackedPool(algorithm, population, 8))
    skipping = StackedPool(algorithm, population, 8, faults=Faults(client_error="skip"))
    found, _ = run(algorithm, population, skipping)
    assert found.failed == (2,)
    serial = SerialPool(algorithm, population, faults=Faults(client_error="skip"))
    close(found.state, run(algorithm, population, serial)[0].state, 1e-4)


def test_clients_that_fail_by_chance_are_tried_again() -> None:
    population, faults = (
        small(rounds=2),
        Faults(client_error="retry", max_retries=9, chaos=Chaos(fail_client=0.4)),
    )
    found, _ = run(FedAvg(), population, StackedPool(FedAvg(), population, 8, faults=faults))
    assert found.engine["client_retries"] > 0
    assert found.digest == run(FedAvg(), population, StackedPool(FedAvg(), population, 8))[0].digest


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
    ],
)
def test_too_little_memory_halves_the_stack_size_and_loses_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _StackedLoop.run_step

    def limited(loop: _StackedLoop, step: int) -> None:
        if len(loop.loops) > 4 and step == 1:
            raise error
        whole(loop, step)

    population, algorithm = small(), quick("scaffold")
    expected, kept = run(algorithm, population, StackedPool(algorithm, population, 4))
    monkeypatch.setattr("fedsim.stacking.stacked._StackedLoop.run_step", limited)
    pool = StackedPool(algorithm, population, 8)
    found, memories = run(algorithm, population, pool)
    assert (found.digest, found.memory_digest) == (expected.digest, expected.memory_digest)
    assert found.engine == expected.engine
    assert pool.stack_size == 4
    close(memories, kept, 0.0)


@dataclass(frozen=True, kw_only=True)
class Spacious(FedAvg):
    """What a client does outside of its local loop takes more memory than there is for two at once."""

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        if task.lockstep is not None and task.num_examples == 11:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().make_update(ctx, task, trained)


@pytest.mark.parametrize("policy", ["fail", "skip", "retry"])
def test_no_client_is_left_out_for_memory_that_fewer_at_once_do_not_need(policy: Any) -> None:
    population, algorithm = small(rounds=1), Spacious()
    pool = StackedPool(algorithm, population, 8, faults=Faults(client_error=policy))
    found, _ = run(algorithm, population, pool)
    assert (found.failed, pool.stack_size) == ((), 1)
    assert found.digest == run(FedAvg(), population, SerialPool(FedAvg(), population))[0].digest


class Memory:
    """Memory of one client; a set of it knows which clients are still in memory."""


@dataclass(frozen=True, kw_only=True)
class Crowded(Choosy):
    """Each client has memory of its own while it trains, and the device has room for so many clients."""

    room: int = 5
    held: WeakSet[Memory] = field(default_factory=WeakSet)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        if len(self.held) >= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        mine = Memory()
        self.held.add(mine)
        return super().train_client(ctx, task)


@pytest.fixture
def without_gc() -> Iterator[None]:
    """No garbage collection, which would free what a cycle of references keeps."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_gc")
def test_half_a_stack_has_the_memory_of_the_whole() -> None:
    algorithm, population = Crowded(when="never"), federation([16] * 8, rounds=1)
    found, _ = run(algorithm, population, StackedPool(algorithm, population, 8))
    assert found.engine["width"] == 4
    assert not algorithm.held


@pytest.mark.usefixtures("without_gc")
def test_a_failed_client_leaves_nothing_in_memory() -> None:
    algorithm, population = Crowded(when="correction", room=8), small(rounds=1)
    pool = StackedPool(algorithm, population, 8, faults=Faults(client_error="skip"))
    found, _ = run(algorithm, population, pool)
    assert found.failed == (2,)
    assert not algorithm.held


def test_a_stack_size_below_one_is_refused() -> None:
    with pytest.raises(SettingsError, match="0 clients"):
        StackedPool(FedAvg(), small(), 0)


def test_a_company_that_is_given_up_leaves_nobody_behind() -> None:
    """Its members end where they wait, whatever they catch."""
    lockstep, ended = StackLockstep(lambda loops: 1 / 0), []  # type: ignore[arg-type, return-value]

    def member(number: int) -> int:
        try:
            lockstep.run_loop(None)  # type: ignore[arg-type]
        except Exception:
            ended.append("caught")
        finally:
            ended.append(number)
        return number

    with pytest.raises(ZeroDivisionError):
        list(lockstep.run_clients([partial(member, number) for number in range(3)]))
    assert ended == [0, 1, 2]


@dataclass(frozen=True, kw_only=True)
class InModes(FedAvg):
    """Every client works in modes of torch, also while it waits for its local loop."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            update = super().train_client(ctx, task)
            assert torch.is_autocast_enabled("cpu")
            assert not torch.is_grad_enabled()
        return update


def test_modes_of_torch_are_those_of_each_client() -> None:
    """Local loops of a stack run without them, and nobody else meets them."""
    population = small(rounds=2)
    found, _ = run(InModes(), population, StackedPool(InModes(), population, 8))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert found.digest == run(FedAvg(), population, StackedPool(FedAvg(), population, 8))[0].digest


def test_a_local_loop_outside_of_its_company_is_refused() -> None:
    with pytest.raises(RuntimeError, match="is for the clients of a lockstep"):
        StackLockstep(lambda descents: []).run_loop(None)  # type: ignore[arg-type]


def test_a_local_loop_in_a_thread_of_a_client_is_refused() -> None:
    lockstep, errors = StackLockstep(lambda loops: []), list[str]()

    def ask() -> None:
        try:
            lockstep.run_loop(None)  # type: ignore[arg-type]
        except RuntimeError as error:
            errors.append(str(error))

    def member() -> None:
        thread = Thread(target=ask)
        thread.start()
        thread.join()

    assert list(lockstep.run_clients([member])) == [None]
    assert "in its thread" in errors[0]
