"""FedPer, LG-FedAvg, FedRep, FedROD and FedBABU, held against tests/fedsim/handmade.py.

Two rounds, four of seven clients in each, some with fewer examples than a batch and with classes missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.algorithms import FedAvg, FedBABU, FedPer, FedRep, FedROD, LGFedAvg
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.algorithms.personalized.fedrod import PERSONAL_PREFIX
from fedsim.clients.population import Population
from fedsim.core import LocalTraining
from fedsim.core.capabilities import personal_models
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.spec import parse_spec
from jobs.spec.checks.name_checks import find_curriculum_faults
from tests.fedsim.federations import federation
from tests.fedsim.handmade import BODY, HEAD, SETTINGS, Hand, HandBABU, HandRep, HandROD, features, small

METHODS: dict[str, tuple[Any, Callable[[Population], Hand]]] = {
    "fedper": (FedPer(), lambda population: Hand(population, BODY)),
    "lg_fedavg": (LGFedAvg(), lambda population: Hand(population, HEAD)),
    "fedrep": (FedRep(head_epochs=2), lambda population: HandRep(population, BODY)),
    "fedrod": (FedROD(), lambda population: HandROD(population, (*BODY, *HEAD))),
    "fedbabu": (FedBABU(), lambda population: HandBABU(population, BODY)),
}


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_two_rounds_by_hand(name: str, local: LocalTraining) -> None:
    algorithm, make = METHODS[name]
    population = small(local)
    pool, hand = SerialPool(algorithm, population), make(population)
    for result in simulate(algorithm, population, pool):
        hand.round(result.round - 1, result.cohort)
        assert result.state.params.keys() == hand.server.keys()
        for key, value in hand.server.items():
            torch.testing.assert_close(result.state.params[key], value, rtol=2e-5, atol=2e-6)
    memories = pool.client_states()
    assert set(memories) == (set(hand.own) if algorithm.stateful else set())
    assert 4 < len(hand.own) <= 7
    for client, memory in memories.items():
        assert set(memory[PRIVATE_PARAMS]) == set(hand.own[client])
        for key, value in memory[PRIVATE_PARAMS].items():
            torch.testing.assert_close(value, hand.own[client][key], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_and_what_stays(name: str) -> None:
    """Only the shared keys come up, and the server's other part never moves."""
    algorithm, make = METHODS[name]
    population = small(SETTINGS["plain"])
    shared, first = set(make(population).shared), population.nets[0].init(population.settings.seed)
    pool = SerialPool(algorithm, population)
    ctx, state = population.context(0), make_initial_state(algorithm, population)
    reduced = pool.begin_training(ctx, state, [0, 4])()
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
    down, first = algorithm.broadcast(ctx, state), population.nets[0].init(population.settings.seed)
    for client in (early, *never):
        memory = pool.client_states().get(client)
        task = pool.worker.loader.make_task_without_batches(algorithm, ctx, client, down, {}, memory)
        model = personal_models(algorithm).personalize(ctx, task)
        own = (memory or {}).get(PRIVATE_PARAMS, {})
        for key, value in {**first, **down["params"], **own}.items():
            assert torch.equal(model[key], value), key
        if name == "fedrod":
            x = torch.from_numpy(population.dataset.test.x[:5].copy())
            found = algorithm.predict_personal(ctx, model, x)
            hidden = features(model, x)
            heads = [model[key] + own.get(PERSONAL_PREFIX + key, torch.zeros(())) for key in HEAD]
            torch.testing.assert_close(found, F.linear(hidden, *heads))


def test_the_heads_passes_of_fedrep() -> None:
    """Two epochs of three batches: a pass is the first three; in steps, all of them."""
    population = small(LocalTraining(epochs=2, batch_size=8, lr=0.1))
    algorithm = FedRep(head_epochs=3)
    for local, passes in ((population.settings.local, 9), (LocalTraining(steps=4, batch_size=8, lr=0.1), 12)):
        ctx = replace(population.context(0), local=local)
        down = algorithm.broadcast(ctx, make_initial_state(algorithm, population))
        task = SerialPool(algorithm, population).worker.loader.make_task(algorithm, ctx, 5, down, {}, None)
        fitting = algorithm.make_head_task(ctx, task).batches
        assert len(fitting) == passes
        for number, batch in enumerate(fitting):
            assert torch.equal(batch.x, task.batches[number % (passes // 3)].x)
        head, body = algorithm.count_effort(ctx, None, len(task.batches))
        assert (head.steps, set(head.trainable)) == (passes, set(HEAD))
        assert (body.steps, set(body.trainable)) == (len(task.batches), set(BODY))


def test_a_client_without_examples_is_no_obstacle() -> None:
    population = federation([0, 8, 12], hidden=5, rounds=2)
    for algorithm, _ in METHODS.values():
        results = list(simulate(algorithm, population, SerialPool(algorithm, population)))
        assert np.isfinite(results[-1].metrics["train_loss"])


def test_clients_cannot_be_asked_about_a_model_that_nobody_has() -> None:
    for name, path in (("fedper", ["curriculum.clients.scores"]), ("fedbabu", []), ("fedrod", [])):
        spec = parse_spec({"algorithm": name, "curriculum": {"clients": {}}})
        assert [fault.path for fault in find_curriculum_faults(spec)] == path
    assert not find_curriculum_faults(
        parse_spec({"algorithm": "fedper", "curriculum": {"clients": {"scores": "kept"}}})
    )
    nobody = {"clients": {"order": "random"}}
    assert not find_curriculum_faults(parse_spec({"algorithm": "fedper", "curriculum": nobody}))
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


@pytest.mark.parametrize("local", SETTINGS.values(), ids=SETTINGS)
def test_with_a_shared_head_fedbabus_model_is_that_of_fedavg(local: LocalTraining) -> None:
    """Bit for bit, with the same traffic and effort; only the personal models are tuned."""
    algorithm, population = FedBABU(head="shared"), small(local)
    tuned, plain = (
        list(simulate(each, population, SerialPool(each, population))) for each in (algorithm, FedAvg())
    )
    for found, expected in zip(tuned, plain, strict=True):
        assert found.state.params.keys() == expected.state.params.keys()
        for key, value in expected.state.params.items():
            assert torch.equal(found.state.params[key], value), key
        assert (found.traffic.up, found.traffic.down) == (expected.traffic.up, expected.traffic.down)
        assert (found.cost.updates, found.cost.flops) == (expected.cost.updates, expected.cost.flops)
    ctx, state = population.context(1), tuned[-1].state
    pool = SerialPool(algorithm, population)
    down = algorithm.broadcast(ctx, state)
    tuning = algorithm.plan_tuning(ctx)
    assert tuning is not None
    assert tuning.epochs == 10
    task = pool.worker.loader.make_task(algorithm, replace(ctx, local=tuning), 5, down, {}, None)
    model = algorithm.personalize(replace(ctx, local=tuning), task)
    assert not any(torch.equal(model[key], state.params[key]) for key in (*BODY, *HEAD))
