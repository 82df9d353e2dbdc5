"""Clients of four architectures on two actors, each of which has every architecture once."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from actors.ray_pool import RayPool
from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.clients.population import Population
from fedsim.core import ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.data.dataset import Examples
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.models.net import Net
from tests.fedsim.federations import federation, gaussian_dataset, public_examples
from tests.open_actors import open_actors

pytestmark = pytest.mark.usefixtures("ray_cluster")


@dataclass(frozen=True, kw_only=True)
class Counted(AcePFL):
    """After every client its process writes down the nets it has, and the modules that hold weights."""

    folder: Path

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """As always."""
        update = super().train_client(ctx, task)
        alive = [each for each in gc.get_objects() if type(each) is Net]
        weighty = sum(p.device.type != "meta" for net in alive for p in net.module.parameters())
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{ctx.net.name} {len(alive)} {weighty}\n")
        return update


@dataclass(frozen=True, kw_only=True)
class Hoarding(AcePFL):
    """What no actor may do: its process holds on to the model of every client that it has trained."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """As always."""
        update = super().train_client(ctx, task)
        vars(torch).setdefault("hoard", []).append(update.client_state["model"])
        return update


def images(examples: Examples) -> Examples:
    """The same numbers as images."""
    return replace(examples, x=examples.x.reshape(-1, 1, 16, 16))


def twenty() -> Population:
    """20 clients of four architectures, dealt in turn: of vectors and of images, with and without layers."""
    population = federation([9] * 20, rounds=2, local=LocalTraining(epochs=1, batch_size=6, lr=0.05))
    data = gaussian_dataset(features=256)
    data = replace(data, train=images(data.train), test=images(data.test), input_shape=(1, 16, 16))
    kinds = {"logistic": {}, "mlp": {"hidden": 8}, "mel_cnn": {"width": 4}, "lenet5": {}}
    nets = tuple(
        make_net(name, input_shape=data.input_shape, num_classes=data.num_classes, **given)
        for name, given in kinds.items()
    )
    return replace(population, dataset=data, nets=nets, public=images(public_examples(features=256)))


def shapes_of(net: Net) -> dict[tuple[int, ...], int]:
    """Bytes of the weights of each shape, without those of one axis, whose shapes other numbers have too."""
    first = [value for value in net.init(0).values() if value.dim() > 1]
    return {tuple(value.shape): value.nbytes for value in first}


def weights_left(_actor: Any, shapes: set[tuple[int, ...]]) -> int:
    """Bytes in this process of all arrays that have the shape of a client's weights; each memory once."""
    gc.collect()
    found, seen, left = dict[int, int](), set[int](), gc.get_objects()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            if each.device.type != "meta" and each.is_floating_point() and tuple(each.shape) in shapes:
                found[each.data_ptr()] = each.nbytes
        elif isinstance(each, np.ndarray):
            if each.dtype.kind == "f" and each.shape in shapes:
                found[each.ctypes.data] = each.nbytes
        elif isinstance(each, dict | list | tuple):  # of arrays alone the collector does not know
            left += gc.get_referents(each)
    return sum(found.values())


@pytest.mark.slow
def test_an_actor_has_one_instance_of_each_architecture_and_clients_are_client_states(tmp_path: Path) -> None:
    population, algorithm = twenty(), Counted(folder=tmp_path, clusters=2)
    with open_actors(2) as actor_group:
        pool = RayPool(algorithm, population, actor_group)
        results = list(simulate(algorithm, population, pool, evaluate_every=2))
        memories = pool.client_states()
        sizes = [shapes_of(net) for net in population.nets]
        shapes, once = {shape for size in sizes for shape in size}, sum(sum(s.values()) for s in sizes)
        left = [ray.get(actor.__ray_call__.remote(weights_left, shapes)) for actor in actor_group.actors]
        hoarding = Hoarding(clusters=2)
        list(
            simulate(
                hoarding, population, RayPool(hoarding, population, actor_group), rounds=1, personal="never"
            )
        )
        hoarded = [ray.get(actor.__ray_call__.remote(weights_left, shapes)) for actor in actor_group.actors]
    said = defaultdict[int, list[str]](list)
    for file in tmp_path.iterdir():
        said[int(file.name)] = file.read_text().splitlines()
    # Each actor has the first weights of an architecture, once, and of no client any; it would be seen.
    assert max(left) <= once
    assert sum(hoarded) > 5 * once
    assert os.getpid() not in said
    assert len(said) == 2
    assert sum(map(len, said.values())) == 40  # 20 clients, two rounds
    assert max(map(len, said.values())) > 4  # more clients than architectures
    for lines in said.values():
        assert {tuple(line.split()[1:]) for line in lines} == {("4", "0")}
    assert sorted(memories) == list(range(20))
    models = [memories[client]["model"] for client in range(20)]
    for client, model in enumerate(models):
        assert set(model) == set(population.nets[client % 4].keys)
    assert not torch.equal(models[0]["head.weight"], models[4]["head.weight"])  # of one architecture, its own

    reference = AcePFL(clusters=2)
    expected = list(simulate(reference, population, SerialPool(reference, population), evaluate_every=2))
    assert [each.digest for each in results] == [each.digest for each in expected]
    assert results[-1].memory_digest == expected[-1].memory_digest
    assert results[-1].metrics == expected[-1].metrics
