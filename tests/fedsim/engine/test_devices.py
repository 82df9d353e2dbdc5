"""Clients on a device that is not the CPU: no GPU is at hand, so tensors that have no values stand in for it.

Torch tracks where each would be, and refuses to mix devices as a GPU does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedsim.algorithms import ALGORITHMS, KDIA, Scaffold
from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.clients.population import Population, TaskLoader
from fedsim.core import LocalTraining, ReducedUpdates, Traffic
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_messages import (
    make_broadcasts,
    make_instructions,
)
from fedsim.engine.span_result import make_client_sums
from fedsim.errors import FedsimError
from tests.fedsim.federations import federation
from tests.fedsim.methods import QUICK

ELSEWHERE = torch.device("meta")

AT_ONCE = {"fedcog": {"start_round": 0, "samples": 4, "descent": 1}}
"""So that a method does from the first round on what it does with tensors of its own."""


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory can only be pinned where there is a GPU."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)


def population() -> Population:
    """Two clients of two batches each."""
    return federation([16, 16], rounds=2, local=LocalTraining(epochs=1, batch_size=8, lr=0.1, momentum=0.9))


def carried(message: Tree) -> Tree:
    """It, on that device."""
    return tree.map(lambda leaf: leaf.to(ELSEWHERE), message)


@pytest.mark.usefixtures("unpinned")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if method.stateful else pytest.mark.slow)
        for name, method in ALGORITHMS.items()
    ],
)
def test_a_client_trains_where_its_shelf_is(name: str) -> None:
    everybody = population()
    algorithm = ALGORITHMS[name](**{**QUICK.get(name, {}), **AT_ONCE.get(name, {})})
    ctx, state = everybody.context(0), make_initial_state(algorithm, everybody)
    down, instructions = (
        make_broadcasts(algorithm, ctx, state)["0"],
        make_instructions(algorithm, ctx, state, [1]),
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        loader = TaskLoader(everybody, ELSEWHERE)
        there = loader.context(0).for_client(1)
        task = loader.make_task(algorithm, there, 1, carried(down), carried(instructions.get(1, {})), None)
        assert {leaf.device for _, leaf in tree.leaves(task.client_state)} <= {ELSEWHERE}
        update = algorithm.train_client(there, task)
        sums = make_client_sums(algorithm, there, update, 1.0, {}).vectors
    assert {vector.device for vector in sums.values() if len(vector)} <= {ELSEWHERE}


@pytest.mark.usefixtures("unpinned")
def test_a_pool_in_this_process_sends_clients_what_they_need_to_their_device() -> None:
    """Each comes as far as it can: to the first number that is asked for, which these tensors do not have."""
    algorithm, everybody = Scaffold(), population()
    ctx, state = everybody.context(0), make_initial_state(algorithm, everybody)
    pool = SerialPool(algorithm, everybody, str(ELSEWHERE))
    pool.restore_client_states({1: algorithm.init_client_state(ctx, algorithm.broadcast(ctx, state))})
    with FakeTensorMode(allow_non_fake_inputs=True):
        asked = [
            pool.begin_training(ctx, state, [0, 1]),
            pool.begin_training(ctx, state, [1]),
            lambda: list(pool.begin_personal_evaluation(ctx, state, [1])),
            lambda: pool.measure_losses(ctx, state, [1]),
            pool.begin_evaluation(ctx, state),
        ]
        for work in asked:
            with pytest.raises(FedsimError, match="_local_scalar_dense"):
                work()


@pytest.mark.usefixtures("unpinned")
def test_a_generator_is_trained_where_the_server_is_told_to() -> None:
    """Classifiers, noise, weights and moments go to that device, and the state comes home again."""
    method, everybody = KDIA(**QUICK["kdia"]), population()
    ctx = everybody.context(0)
    state, there = make_initial_state(method, everybody), replace(ctx, device=ELSEWHERE)
    heads = [tree.select(ctx.net.init(seed), ctx.net.head) for seed in (1, 2)]
    reduced = ReducedUpdates({"heads": heads}, (0, 1), (0.5, 0.5), (16, 16), {}, Traffic())
    with FakeTensorMode(allow_non_fake_inputs=True):
        steps = method.train_server(there, replace(state, generator={**state.generator, "steps": 0}), reduced)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                after = end.value.generator
                break
    assert {leaf.device.type for _, leaf in tree.leaves(after)} == {"cpu"}
