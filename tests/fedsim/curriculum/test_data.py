"""The data curriculum around other methods: identities first, then what it changes, on every pool."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.algorithms import ALGORITHMS, FedAvg, FedProx
from fedsim.clients.population import Population
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining, Pacing
from fedsim.core.capabilities import BatchPacing
from fedsim.core.wrapper import Wrapper
from fedsim.curriculum import DataCurriculum
from fedsim.curriculum.pacing import count_open
from fedsim.curriculum.scores import RULES
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import FedsimError
from fedsim.models import make_net
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything, each_with_one, quick

METHODS = [*ALGORITHMS, "everything"]

QUICK_ONES = ("fedavg", "kdia", "everything")
"""Those that go to actors in every run of the tests; the others where there is time."""


def method(name: str) -> Algorithm:
    return Everything() if name == "everything" else quick(name)


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


def digests(results: list[RoundResult]) -> list[str]:
    return [result.digest for result in results]


def test_a_wrapper_knows_every_hook() -> None:
    hooks = {name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")}
    assert hooks <= vars(Wrapper).keys()


@pytest.mark.parametrize(
    ("name", "how"),
    each_with_one(
        METHODS,
        [
            {"order": order, **everything}
            for order in ("curriculum", "anti", "random")
            for everything in ({"b": 1.0}, {"a": 0.0})
        ],
    ),
)
def test_with_everything_open_it_is_the_base_method_bit_for_bit(name: str, how: Any) -> None:
    base = method(name)
    population = federation(cohort_size=6)
    plain, wrapped = run(base, population), run(DataCurriculum(base=base, **how), population)
    assert digests(wrapped) == digests(plain)
    assert [r.traffic for r in wrapped] == [r.traffic for r in plain]
    for a, b in zip(wrapped, plain, strict=True):
        assert {k: v for k, v in a.metrics.items() if k != "open_share"} == b.metrics


def test_a_pace_that_opens_everything_draws_as_the_usual_loop_does() -> None:
    class Open(FedAvg, BatchPacing):
        def pace_batches(self, ctx: Context, rng: Any, task: ClientTask, steps: int) -> Pacing:
            n = task.num_examples
            return Pacing(rng.permutation(n), np.full(steps, n))

    population = federation()
    assert digests(run(Open(), population)) == digests(run(FedAvg(), population))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK_ONES else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_around_every_method_the_same_on_every_pool(name: str, actor_group: ActorGroup) -> None:
    algorithm = DataCurriculum(base=method(name), score="both_loss")
    population = federation(cohort_size=6, rounds=3)
    reference = SerialPool(algorithm, population)
    expected = list(simulate(algorithm, population, reference))
    pool = RayPool(algorithm, population, actor_group)
    found = list(simulate(algorithm, population, pool))
    assert digests(found) == digests(expected)
    assert [r.metrics for r in found] == [r.metrics for r in expected]
    assert [r.traffic for r in found] == [r.traffic for r in expected]
    memories = pool.client_states()
    assert memories.keys() == reference.client_states().keys()
    for client, memory in reference.client_states().items():
        assert memory.keys() == memories[client].keys() == {"base", "last"}
        for key, value in memory["last"].items():
            assert torch.equal(value, memories[client]["last"][key])


@pytest.mark.slow
@pytest.mark.parametrize("score", sorted(RULES))
@pytest.mark.parametrize("order", ["curriculum", "anti", "random"])
def test_several_architectures_and_every_score(score: Any, order: Any) -> None:
    population = federation(rounds=2)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    nets = tuple(make_net(model, **shape) for model in ("mlp", "logistic"))
    difficulty = np.random.default_rng(0).random(len(population.dataset.train), dtype=np.float32)
    population = replace(population, nets=nets, difficulty=difficulty)
    algorithm = DataCurriculum(base=FedProx(), score=score, order=order)
    results = run(algorithm, population)
    assert digests(results) != digests(run(FedProx(), population))
    assert digests(results) == digests(run(algorithm, population))
    assert results[-1].method["data_curriculum"]["score"] == score


@pytest.mark.parametrize("order", ["curriculum", "anti"])
def test_a_client_sees_its_first_g_of_t_in_order(order: Any) -> None:
    """Positions drawn at every step, against a ranking by NumPy."""
    local = LocalTraining(epochs=4, batch_size=5, lr=0.1)
    population = federation([40, 60, 80], local=local, rounds=2, model="logistic")
    algorithm = DataCurriculum(base=FedAvg(), order=order, a=0.75, b=0.25)
    loader, ctx = SerialPool(algorithm, population).worker.loader, population.context(0)
    params = population.nets[0].init(3)
    task = loader.make_task(algorithm, ctx, 2, {"params": params}, {}, None)
    rows = population.partition.client_positions(2)
    data = population.dataset.train
    logits = data.x[rows].astype(np.float64) @ params["head.weight"].double().numpy().T
    logits += params["head.bias"].double().numpy()
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(80), data.y[rows]]
    sorted_rows = rows[np.argsort(losses if order == "curriculum" else -losses)]
    steps = len(task.batches)
    assert steps == 4 * 16
    limits = count_open("linear", 0.75, 0.25, 80, np.arange(steps) / steps, least=5)
    assert limits[0] == 20
    drawn = [set(each.tolist()) for each in task.batches.rows]  # type: ignore[attr-defined]
    for step, (limit, seen) in enumerate(zip(limits, drawn, strict=True)):
        assert seen <= set(sorted_rows[:limit].tolist()), step
        assert len(seen) == 5
    assert set().union(*drawn[48:]) == set(rows.tolist())  # the usual epoch at the end


def test_the_global_budget_goes_on_over_the_rounds() -> None:
    population = federation([48] * 4, rounds=10, local=LocalTraining(epochs=2, batch_size=5, lr=0.1))
    algorithm = DataCurriculum(base=FedAvg(), budget="global", a=1.0)
    limits = np.concatenate([algorithm.count_open_examples(population.context(r), 48, 20) for r in range(10)])
    assert limits.tolist() == count_open("linear", 1.0, 0.2, 48, np.arange(200) / 200, least=5).tolist()
    shares = [result.metrics["open_share"] for result in run(algorithm, population)]
    assert shares == sorted(shares)
    assert shares[0] < 0.25 < 0.9 < shares[-1] < 1


def test_a_random_order_needs_no_scores_and_no_memory() -> None:
    population = federation(rounds=2)
    algorithm = DataCurriculum(base=FedAvg(), score="local_loss", order="random")
    pool = SerialPool(algorithm, population)
    list(simulate(algorithm, population, pool))
    assert not pool.client_states()


def test_a_client_without_examples_is_no_obstacle() -> None:
    population = federation([20, 0, 20], rounds=2)
    results = run(DataCurriculum(base=FedAvg(), score="both_prediction"), population)
    assert len(results) == 2


def test_a_method_that_plans_its_own_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="chooses the examples of its steps itself"):
        DataCurriculum(base=DataCurriculum(base=FedAvg()))


def test_a_method_that_hides_its_clients_models_is_told_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Hiding(FedAvg):
        def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
            return super().train_client(ctx, task)._replace(model=None)

    algorithm = DataCurriculum(base=Hiding(), score="local_loss")
    with pytest.raises(FedsimError, match="Hiding does not return its clients' personal models"):
        run(algorithm, federation())
    run(DataCurriculum(base=Hiding()), federation())


def test_a_wrapper_travels_and_is_replaced_whole() -> None:
    algorithm = DataCurriculum(base=FedProx(mu=0.5), score="local_loss")
    copy = pickle.loads(pickle.dumps(algorithm))
    assert copy == algorithm
    assert copy.stateful
    assert copy.heterogeneous
    assert copy.uploads == FedProx.uploads
    assert not replace(copy, score="global_loss").stateful
