"""Clients of four architectures on two actors, each of which has every architecture once."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from actors.crew import Crew
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.algorithms.ace_pfl import AcePFL
from fedsim.core import Context, Local, Report, Visit
from fedsim.models import make_net
from fedsim.net import Net
from fedsim.pools import SerialPool
from fedsim.population import Population
from fedsim.simulation import simulate
from tests.fedsim.federations import federation

pytestmark = pytest.mark.usefixtures("ray_cluster")


@dataclass(frozen=True, kw_only=True)
class Counted(AcePFL):
    """After every client its process writes down the nets it has, and the modules that hold weights."""

    folder: Path

    def train(self, ctx: Context, visit: Visit) -> Report:
        """As always."""
        report = super().train(ctx, visit)
        alive = [each for each in gc.get_objects() if type(each) is Net]
        weighty = sum(p.device.type != "meta" for net in alive for p in net.module.parameters())
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{ctx.net.name} {len(alive)} {weighty}\n")
        return report


def twenty() -> Population:
    """20 clients of four architectures, dealt in turn; the weights of one are at most 2 KB."""
    population = federation([9] * 20, rounds=2, local=Local(epochs=1, batch_size=6, lr=0.05))
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    sizes = {"logistic": {}, "mlp": {"hidden": 8}, "wider": {"hidden": 16}, "widest": {"hidden": 24}}
    nets = tuple(make_net("mlp" if size else "logistic", **shape, **size) for size in sizes.values())
    return replace(population, nets=nets)


def test_an_actor_has_one_instance_of_each_architecture_and_clients_are_memories(tmp_path: Path) -> None:
    population, algorithm = twenty(), Counted(folder=tmp_path, clusters=2)
    crew = Crew(Placement(2, 0.5, 0.0))
    try:
        pool = RayPool(algorithm, population, crew)
        results = list(simulate(algorithm, population, pool, evaluate_every=2))
        memories = pool.memories()
    finally:
        crew.close()
    said = defaultdict[int, list[str]](list)
    for file in tmp_path.iterdir():
        said[int(file.name)] = file.read_text().splitlines()
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
