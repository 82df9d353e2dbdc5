"""Every method as tests run it: the defaults, with less of what takes seconds; and the tests' own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.algorithms.personal_parts import fine_tune
from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining, ReducedUpdates, Reduction
from fedsim.core.capabilities import ClientInstructions, PersonalModels
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel

MOMENTUM = LocalTraining(epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3)

QUICK: Mapping[str, Mapping[str, Any]] = {
    "afl": {"weight_lr": 0.1},  # the default hardly moves the weights in a few rounds
    "kdia": {"generator_epochs": 2, "generator_batches": 4, "generator_batch_size": 8, "generator_noise": 8},
    "fedgen": {"generator_steps": 6, "generator_batch_size": 8, "generator_noise": 8, "samples": 8},
    "fedcl": {
        "generator_steps": 6,
        "generator_batch_size": 8,
        "generator_noise": 8,
        "samples": 8,
        "draws": 20,
    },
    "fedcl_code": {
        **{"generator_steps": 6, "generator_batch_size": 8, "generator_noise": 8, "samples": 8},
        **{"alpha": 1.0, "beta": 1.0},  # six steps make no generator that deserves the weights of 10
    },
    "fedad": {"server_epochs": 60, "server_batch_size": 20, "server_lr": 0.01, "lambda_att": 0.0},
    "fedkd": {"server_epochs": 60, "server_batch_size": 20, "server_lr": 0.01},
    "feddf": {"steps": 12, "batch_size": 12, "check_every": 4, "patience": 8, "lr": 0.003},
    "cfl": {"start_round": 1, "eps_1": 1000.0, "eps_2": 0.0},
    "fedcog": {"start_round": 1, "samples": 12, "descent": 3},
}

FREEZING: Mapping[str, Any] = {
    **QUICK["fedcl"],
    "levels": (0.9, 0.6),
    "order": "descending",
    "v": 0.5,
    "finished": 0.9,
    "cap": 8,
}
"""FedCL so that clients freeze from the first round on: of ten with six in a round, in rounds 1 to 4."""


def quick(name: str) -> Algorithm:
    """A method by its name in the registry."""
    return ALGORITHMS[name](**QUICK.get(name, {}))


VARIED = ("fedavg", "scaffold", "feddisco", "kdia", "ace_pfl", "cd2_pfed", "everything")
"""One of each kind: a model, two payloads, a census, generators, predictions, parts; and all at once."""


def slow_unless_varied(names: Iterable[str]) -> list[Any]:
    """Parameters: every name, `slow` unless it is one of `VARIED`."""
    return [name if name in VARIED else pytest.param(name, marks=pytest.mark.slow) for name in names]


def each_with_one(names: Sequence[str], choices: Sequence[Any]) -> list[Any]:
    """FedAvg with every choice, and every other name with one, in turn; `slow` unless in `VARIED`."""
    return [
        pytest.param(name, choice, marks=() if name in VARIED else pytest.mark.slow)
        for number, name in enumerate(names)
        for turn, choice in enumerate(choices)
        if name == "fedavg" or number % len(choices) == turn
    ]


def run(algorithm: Algorithm, population: Any) -> list[RoundResult]:
    """Every round, one client after the other."""
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


def same_models(first: Algorithm, second: Algorithm, population: Population) -> bool:
    """Whether both methods end every round with the same parameters, bit for bit."""
    one, other = run(first, population), run(second, population)
    return all(
        torch.equal(value, b.state.params[key])
        for a, b in zip(one, other, strict=True)
        for key, value in a.state.params.items()
    )


def visited(
    method: Algorithm, population: Population, memory: Any = None, round: int = 1
) -> tuple[Context, ClientTask]:
    """Client 5's visit, with a broadcast of models that are all different."""
    ctx, net = population.context(round), population.nets[0]
    broadcast = {"params": net.init(1), "teacher": net.init(2)}
    loader = SerialPool(method, population).worker.loader
    return ctx, loader.make_task(method, ctx, 5, broadcast, {}, memory)


@dataclass(frozen=True, kw_only=True)
class Everything(FedAvg, ClientInstructions):
    """Uploads one payload of each kind, keeps a visit counter, and instructs."""

    uploads: ClassVar[Mapping[str, Reduction]] = {
        "params": Reduction.MEAN,
        "size": Reduction.SUM,
        "head": Reduction.GATHER,
    }
    stateful: ClassVar[bool] = True
    heterogeneous: ClassVar[bool] = False

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Any]:
        return {"greeting": {"number": torch.tensor([float(client)])}}

    def init_client_state(self, ctx: Context, broadcast: Any) -> Any:
        return {"visits": torch.zeros(())}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        update = super().make_update(ctx, task, trained)
        head = tree.select(trained.params, ctx.net.head)
        number = task.instruction["greeting"]["number"]
        upload = {**update.upload, "size": {"n": torch.tensor([1.0])}, "head": {**head, "number": number}}
        return ClientUpdate(upload, {"visits": task.client_state["visits"] + 1}, update.metrics)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        assert reduced["size"]["n"].tolist() == [len(reduced.clients)]
        assert [int(entry["number"]) for entry in reduced["head"]] == list(reduced.clients)
        return super().aggregate(ctx, state, reduced)


@dataclass(frozen=True, kw_only=True)
class Tuned(FedAvg, PersonalModels):
    """FedAvg whose clients train everything for two epochs before they use the model."""

    def plan_tuning(self, ctx: Context) -> LocalTraining:
        """Two epochs."""
        return replace(ctx.local, epochs=2, steps=None)

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """Everything trained."""
        return fine_tune(ctx, task, self.initial_params(ctx, task))


@dataclass(frozen=True, kw_only=True)
class Keeper(FedAvg):
    """FedPer by hand: the head stays with the client."""

    stateful: ClassVar[bool] = True

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """The body."""
        return ctx.net.body

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """A head of one's own."""
        return tree.select(ctx.net.init(ctx.seed), ctx.net.head)

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The server's body on one's own head."""
        return {**task.broadcast["params"], **task.client_state}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The body goes, the head stays."""
        update = super().make_update(ctx, task, trained)
        return update._replace(client_state=tree.select(trained.params, ctx.net.head))
