"""FedPer, LG-FedAvg, FedRep, FedROD and FedBABU once more, by hand: torch's own layers and optimisers.

Two rounds on a body of one hidden layer and a head, four of seven clients in each, some with fewer examples
than a batch and with classes missing. `Hand` keeps what each client keeps in plain dicts of float32 tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim import rng
from fedsim.algorithms import FedBABU, FedPer, FedRep, FedROD, LGFedAvg
from fedsim.algorithms.fedavg import OWN
from fedsim.algorithms.fedrod import ABSENT, PREFIX, prior
from fedsim.core import Batch, Context, Local, Visit
from fedsim.curriculum import ClientCurriculum
from fedsim.net import Params
from fedsim.pools import SerialPool, StackedPool
from fedsim.population import Population
from fedsim.sampling import draws
from fedsim.simulation import first_state, simulate
from jobs.curricula import curriculum_faults
from jobs.spec import parse_spec
from tests.fedsim.federations import federation

BODY, HEAD = ("fc1.0.weight", "fc1.0.bias"), ("head.weight", "head.bias")
SIZES = [3, 8, 11, 16, 20, 24, 30]
SETTINGS = {
    "plain": Local(epochs=2, batch_size=8, lr=0.1),
    "momentum": Local(epochs=1, batch_size=5, lr=0.05, momentum=0.9, weight_decay=0.01),
}

Model = dict[str, Tensor]
Loss = Callable[[Model, Tensor, Tensor], Tensor]


def small(local: Local, **changes: Any) -> Population:
    return federation(SIZES, hidden=5, rounds=2, cohort_size=4, local=local, **changes)


def features(model: Model, x: Tensor) -> Tensor:
    return F.relu(F.linear(x, model["fc1.0.weight"], model["fc1.0.bias"]))


def plain(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(features(model, x), model["head.weight"], model["head.bias"]), y)


class Hand:
    """One method, by hand.

    Args:
        population: the federation.
        shared: the keys that travel.
    """

    def __init__(self, population: Population, shared: Iterable[str]) -> None:
        self.population, self.shared = population, tuple(shared)
        self.server = {key: value.clone() for key, value in population.nets[0].init(population.seed).items()}
        self.own: dict[int, Model] = {}

    def rows(self, number: int, client: int) -> list[np.ndarray[Any, Any]]:
        """The examples of each local step."""
        held, local = self.population.partition.client(client), self.population.local
        stream = rng.stream(self.population.seed, "shuffle", number, client)
        steps = local.steps_for(len(held))
        return [held[some] for some in draws(stream, len(held), steps, local.batch_size)]

    def sgd(
        self, model: Model, rows: Iterable[np.ndarray[Any, Any]], keys: Iterable[str], loss: Loss
    ) -> Model:
        """Torch's own SGD on some keys."""
        local, data = self.population.local, self.population.dataset.train
        model = {key: value.clone() for key, value in model.items()}
        moving = [model[key].requires_grad_() for key in keys]
        decay = {"momentum": local.momentum, "weight_decay": local.weight_decay}
        optimiser = torch.optim.SGD(moving, lr=local.lr, **decay)
        for some in rows:
            optimiser.zero_grad()
            loss(model, torch.from_numpy(data.x[some]), torch.from_numpy(data.y[some])).backward()
            optimiser.step()
        return {key: value.detach() for key, value in model.items()}

    def train(self, number: int, client: int, model: Model) -> Model:
        """A client's round: everything together, unless a method says otherwise."""
        return self.sgd(model, self.rows(number, client), (*BODY, *HEAD), plain)

    def round(self, number: int, cohort: Iterable[int]) -> None:
        """Train, keep, average."""
        trained, sizes = [], []
        for client in cohort:
            model = self.train(number, client, {**self.server, **self.own.get(client, {})})
            self.own[client] = {key: value for key, value in model.items() if key not in self.shared}
            trained.append(model)
            sizes.append(SIZES[client])
        for key in self.shared:
            stacked = np.stack([model[key].double().numpy() for model in trained])
            self.server[key] = torch.from_numpy(np.average(stacked, axis=0, weights=sizes)).float()


class HandRep(Hand):
    """The head for two passes over the first epoch's batches, then the body."""

    def train(self, number: int, client: int, model: Model) -> Model:
        rows = self.rows(number, client)
        one = rows[: len(rows) // self.population.local.epochs]
        model = self.sgd(model, [*one, *one], HEAD, plain)
        return self.sgd(model, rows, BODY, plain)


class HandBABU(Hand):
    """Nothing but the body."""

    def train(self, number: int, client: int, model: Model) -> Model:
        return self.sgd(model, self.rows(number, client), BODY, plain)


class HandROD(Hand):
    """Two losses and two optimisers, one after another on each batch."""

    def train(self, number: int, client: int, model: Model) -> Model:
        held, local = self.population.partition.client(client), self.population.local
        data = self.population.dataset.train
        counts = torch.bincount(torch.from_numpy(data.y[held]), minlength=4).float()
        zeros = {PREFIX + key: torch.zeros_like(model[key]) for key in HEAD}
        model = {key: value.clone().requires_grad_() for key, value in {**zeros, **model}.items()}
        decay = {"momentum": local.momentum, "weight_decay": local.weight_decay}
        generic = torch.optim.SGD([model[key] for key in (*BODY, *HEAD)], lr=local.lr, **decay)
        personal = torch.optim.SGD([model[PREFIX + key] for key in HEAD], lr=local.lr, **decay)
        for some in self.rows(number, client):
            x, y = torch.from_numpy(data.x[some]), torch.from_numpy(data.y[some])
            hidden = features(model, x)
            logits = F.linear(hidden, model["head.weight"], model["head.bias"])
            second = F.linear(hidden.detach(), *(model[PREFIX + key] for key in HEAD))
            generic.zero_grad()
            F.cross_entropy(logits + counts.log(), y).backward()
            personal.zero_grad()
            F.cross_entropy(logits.detach() + second, y).backward()
            generic.step()
            personal.step()
        return {key: value.detach() for key, value in model.items()}


METHODS: dict[str, tuple[Any, Callable[[Population], Hand]]] = {
    "fedper": (FedPer(), lambda population: Hand(population, BODY)),
    "lg_fedavg": (LGFedAvg(), lambda population: Hand(population, HEAD)),
    "fedrep": (FedRep(head_epochs=2), lambda population: HandRep(population, BODY)),
    "fedrod": (FedROD(), lambda population: HandROD(population, (*BODY, *HEAD))),
    "fedbabu": (FedBABU(), lambda population: HandBABU(population, BODY)),
}


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_two_rounds_by_hand(name: str, local: Local) -> None:
    algorithm, make = METHODS[name]
    population = small(local)
    pool, hand = SerialPool(algorithm, population), make(population)
    for result in simulate(algorithm, population, pool):
        hand.round(result.round - 1, result.cohort)
        assert result.state.params.keys() == hand.server.keys()
        for key, value in hand.server.items():
            torch.testing.assert_close(result.state.params[key], value, rtol=2e-5, atol=2e-6)
    memories = pool.memories()
    assert set(memories) == (set(hand.own) if algorithm.stateful else set())
    assert 4 < len(hand.own) <= 7
    for client, memory in memories.items():
        assert set(memory[OWN]) == set(hand.own[client])
        for key, value in memory[OWN].items():
            torch.testing.assert_close(value, hand.own[client][key], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_and_what_stays(name: str) -> None:
    """Only the shared keys come up, and the server's other part never moves."""
    algorithm, make = METHODS[name]
    population = small(SETTINGS["plain"])
    shared, first = set(make(population).shared), population.nets[0].init(population.seed)
    pool = SerialPool(algorithm, population)
    ctx, state = population.context(0), first_state(algorithm, population)
    reduced = pool.train(algorithm, ctx, state, [0, 4])()
    assert set(reduced["params"]) == set(algorithm.broadcast(ctx, state)["params"]) == shared
    floats = sum(first[key].numel() for key in shared)
    assert reduced.traffic.down == reduced.traffic.up == 2 * 4 * floats
    after = algorithm.aggregate(ctx, state, reduced).params
    for key, value in first.items():
        assert torch.equal(after[key], value) == (key not in shared)


@pytest.mark.parametrize("name", METHODS)
def test_who_stays_away_uses_its_own_part_with_the_shared_one_of_today(name: str) -> None:
    algorithm, _ = METHODS[name]
    algorithm = FedBABU(tuning_epochs=0) if name == "fedbabu" else algorithm
    population = small(SETTINGS["plain"])
    pool = SerialPool(algorithm, population)
    results = list(simulate(algorithm, population, pool))
    (early, *_) = sorted(set(results[0].cohort) - set(results[1].cohort))
    never = sorted(set(range(7)) - set(results[0].cohort) - set(results[1].cohort))
    ctx, state = population.context(1), results[1].state
    down, first = algorithm.broadcast(ctx, state), population.nets[0].init(population.seed)
    for client in (early, *never):
        memory = pool.memories().get(client)
        visit = pool.worker.shelf.arrival(algorithm, ctx, client, down, {}, memory)
        model = algorithm.personalise(ctx, visit)
        own = (memory or {}).get(OWN, {})
        for key, value in {**first, **down["params"], **own}.items():
            assert torch.equal(model[key], value), key
        if name == "fedrod":
            x = torch.from_numpy(population.dataset.test.x[:5].copy())
            found = algorithm.predict_personal(ctx, model, x)
            hidden = features(model, x)
            heads = [model[key] + own.get(PREFIX + key, torch.zeros(())) for key in HEAD]
            torch.testing.assert_close(found, F.linear(hidden, *heads))


def rod_step(y: list[int], mask: list[float] | None) -> tuple[Context, Visit, Params, Tensor, Any]:
    """FedROD's loss on one batch of a client that holds no class 2, and its gradients."""
    population = small(SETTINGS["plain"])
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, first_state(algorithm, population))
    visit = SerialPool(algorithm, population).worker.shelf.arrival(algorithm, ctx, 6, down, {}, None)
    visit = visit._replace(label_counts=torch.tensor([20.0, 9.0, 0.0, 1.0]))
    start = {key: value.clone().requires_grad_() for key, value in algorithm.start(ctx, visit).items()}
    x = torch.from_numpy(population.dataset.train.x[: len(y)].copy())
    batch = Batch(x, torch.tensor(y), None if mask is None else torch.tensor(mask))
    loss = algorithm.loss(ctx, visit, start, batch)
    gradients = dict(zip(start, torch.autograd.grad(loss, list(start.values())), strict=True))
    return ctx, visit, start, loss, gradients


def test_a_class_that_a_client_lacks_stays_finite_and_out_of_the_softmax() -> None:
    """Also in the rows that pad a batch, whose labels may be of that class."""
    _, _, start, loss, gradients = rod_step([0, 1, 3, 0], None)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value).all() for value in gradients.values())
    assert not gradients["head.weight"][2].any()
    assert gradients[PREFIX + "head.weight"][2].any()  # the plain loss has all classes
    model = {key: value.detach() for key, value in start.items()}
    padded = rod_step([0, 1, 3, 0, 2, 2], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(padded[3], loss)
    for key, value in padded[4].items():
        torch.testing.assert_close(value, gradients[key], rtol=1e-5, atol=1e-7)
    assert set(model) == {*BODY, *HEAD, *(PREFIX + key for key in HEAD)}


def test_fedrod_with_several_labels_per_example() -> None:
    """Label 0 is yes for 3 of 8 examples, label 1 for none, label 2 for all."""
    population = small(SETTINGS["plain"])
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, first_state(algorithm, population))
    visit = SerialPool(algorithm, population).worker.shelf.arrival(algorithm, ctx, 1, down, {}, None)
    visit = visit._replace(label_counts=torch.tensor([3.0, 0.0, 8.0, 4.0]))
    assert visit.known_counts.tolist() == [8.0] * 4
    y = torch.tensor([[1.0, 0.0, 1.0, float("nan")], [0.0, 0.0, 1.0, 1.0]])
    start = algorithm.start(ctx, visit)
    x = torch.from_numpy(population.dataset.train.x[:2].copy())
    logits = F.linear(features(dict(start), x), start["head.weight"], start["head.bias"])
    odds = torch.tensor([np.log(3 / 5), 0.0, 0.0, 0.0], dtype=torch.float32)
    known = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 1]])  # 1 and 2 are certain, and cost nothing
    each = F.binary_cross_entropy_with_logits(logits + odds, y.nan_to_num(), reduction="none")
    balanced = (each * known).sum() / 7
    usual = F.binary_cross_entropy_with_logits(logits, y.nan_to_num(), reduction="none")
    usual = (usual * ~torch.isnan(y)).sum() / 7
    torch.testing.assert_close(algorithm.loss(ctx, visit, start, Batch(x, y)), balanced + usual)


def test_labels_that_are_not_known_are_no_noes() -> None:
    """Of client 0's three examples: yes, no, unknown; all unknown; yes and twice unknown; three times no."""
    population = small(SETTINGS["plain"])
    unknown, train = float("nan"), population.dataset.train
    y = np.zeros((len(train), 4), np.float32)
    y[:3] = [[1, unknown, 1, 0], [0, unknown, unknown, 0], [unknown, unknown, unknown, 0]]
    dataset = replace(population.dataset, train=replace(train, y=y), task="labels")
    population = replace(population, dataset=dataset)
    algorithm, ctx = FedROD(), population.context(0)
    down = algorithm.broadcast(ctx, first_state(algorithm, population))
    visit = SerialPool(algorithm, population).worker.shelf.arrival(algorithm, ctx, 0, down, {}, None)
    assert visit.label_counts.tolist() == [1, 0, 1, 0]
    assert visit.known_counts.tolist() == [2, 0, 1, 3]
    # One yes and one no; nothing known; a yes; three noes.
    assert prior(visit, several=True).tolist() == pytest.approx([0.0, 0.0, -ABSENT, ABSENT - np.log(3)])
    one, other = (
        list(simulate(algorithm, population, pool, evaluate_every=9))[-1].state.params
        for pool in (SerialPool(algorithm, population), StackedPool(algorithm, population, 3))
    )
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-4, atol=1e-5)


def test_the_heads_passes_of_fedrep() -> None:
    """Two epochs of three batches: a pass is the first three; in steps, all of them."""
    population = small(Local(epochs=2, batch_size=8, lr=0.1))
    algorithm = FedRep(head_epochs=3)
    for local, passes in ((population.local, 9), (Local(steps=4, batch_size=8, lr=0.1), 12)):
        ctx = replace(population.context(0), local=local)
        down = algorithm.broadcast(ctx, first_state(algorithm, population))
        visit = SerialPool(algorithm, population).worker.shelf.visit(algorithm, ctx, 5, down, {}, None)
        fitting = algorithm.fitting(ctx, visit).batches
        assert len(fitting) == passes
        for number, batch in enumerate(fitting):
            assert torch.equal(batch.x, visit.batches[number % (passes // 3)].x)
        head, body = algorithm.effort(ctx, None, len(visit.batches))
        assert (head.steps, set(head.trainable)) == (passes, set(HEAD))
        assert (body.steps, set(body.trainable)) == (len(visit.batches), set(BODY))


def test_a_client_without_examples_is_no_obstacle() -> None:
    population = federation([0, 8, 12], hidden=5, rounds=2)
    for algorithm, _ in METHODS.values():
        results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
        assert np.isfinite(results[-1].metrics["train_loss"])


def test_clients_cannot_be_asked_about_a_model_that_nobody_has() -> None:
    for name, path in (("fedper", ["curriculum.clients.scores"]), ("fedbabu", []), ("fedrod", [])):
        spec = parse_spec({"algorithm": name, "curriculum": {"clients": {}}})
        assert [fault.path for fault in curriculum_faults(spec)] == path
    assert not curriculum_faults(
        parse_spec({"algorithm": "fedper", "curriculum": {"clients": {"scores": "kept"}}})
    )
    population = small(SETTINGS["plain"])
    algorithm = ClientCurriculum(base=FedPer(), scores="kept")
    results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    assert results[-1].method["client_curriculum"]["known_clients"] > 4


def test_without_a_model_for_everybody_the_clients_own_are_scored_in_the_end() -> None:
    population = small(SETTINGS["plain"])
    for algorithm in (FedPer(), FedRep(), LGFedAvg()):
        first, last = simulate(algorithm, population, SerialPool(algorithm, population))
        assert "personal_accuracy" not in first.metrics
        assert last.metrics["personal_clients"] == 7
        assert not {name for name in last.metrics if name.startswith("global")}
