"""FedEnsemble: both readings, their predictions re-computed in NumPy, what a round and the ensemble cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedEnsemble, FedGen
from fedsim.base import wire
from fedsim.core import LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import MOMENTUM, QUICK, run, same_models


def test_fedgens_reading_trains_as_fedavg_does_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=4, rounds=3)
    assert same_models(FedAvg(), FedEnsemble(), population)
    plain, ensemble = run(FedAvg(), population), run(FedEnsemble(), population)
    assert [r.traffic for r in plain] == [r.traffic for r in ensemble]
    assert [r.metrics["global_accuracy"] for r in plain] == [r.metrics["global_accuracy"] for r in ensemble]


def test_the_users_models_answer_together() -> None:
    """All ten, one by one: four that have just trained, and six that hold the model of the round before."""
    population = federation(cohort_size=4, rounds=2, local=LocalTraining(epochs=1, batch_size=8, lr=0.02))
    method = FedEnsemble()
    before, after = run(method, population)
    ctx, net, test = population.context(1), population.nets[0], population.dataset.test
    x = torch.from_numpy(test.x.copy())
    loader = SerialPool(method, population).worker.loader
    users = [before.state.params] * 10
    for client in after.cohort:
        task = loader.make_task(method, ctx, client, method.broadcast(ctx, before.state), {}, None)
        users[client] = method.train_client(ctx, task).upload["params"]
    logs = sum(np.log(softmax(net(user, x).double().numpy())) for user in users)
    found = method.predict(ctx, method.ensemble(after.state), x)
    np.testing.assert_allclose(10 * found.numpy(), logs, rtol=1e-4, atol=1e-5)
    assert after.metrics["ensemble_accuracy"] == pytest.approx((np.argmax(logs, -1) == test.y).mean())
    assert after.method == {"ensemble_models": 5}


def test_where_everybody_came_nobody_holds_the_model_of_before() -> None:
    population = federation([8, 16, 24], rounds=2)
    method = FedEnsemble()
    pool = SerialPool(method, population)
    result = list(simulate(method, population, pool, personal="last"))[-1]
    assert result.method == {"ensemble_models": 3}
    assert result.state.shares.tolist() == pytest.approx([1 / 3] * 3)
    assert result.traffic.personal == 3 * (3 * wire.payload_bytes(population.nets[0].init(0)) + 3 * 4)


def test_a_client_uses_the_ensemble_which_comes_once() -> None:
    population = federation(cohort_size=4, rounds=1)
    several = FedEnsemble(mode="permutation", models=3)
    for method, models, name in ((FedEnsemble(), 5, "ensemble"), (several, 3, "global")):
        pool = SerialPool(method, population)
        (result,) = simulate(method, population, pool, personal="always")
        one = wire.payload_bytes(population.nets[0].init(0))
        assert result.traffic.personal == 10 * (models * one + 4 * models)
        assert result.traffic.down == result.traffic.up == 4 * one
        assert result.personal is not None
        assert result.metrics["personal_accuracy"] == pytest.approx(result.metrics[f"{name}_accuracy"])


def test_what_is_for_training_only_is_not_handed_over() -> None:
    population, method = federation(cohort_size=4, rounds=2), FedGen(**QUICK["fedgen"])
    result = list(simulate(method, population, SerialPool(method, population), personal="last"))[-1]
    assert result.traffic.personal == 10 * wire.payload_bytes(population.nets[0].init(0))


def test_in_an_age_every_stratum_trains_every_model_once() -> None:
    population, method = federation(rounds=8), FedEnsemble(mode="permutation", models=4)
    ages = []
    for age in (0, 1):
        turns = [population.context(4 * age + turn) for turn in range(4)]
        table = np.array([[method.assigned_model(ctx, client) for client in range(4)] for ctx in turns])
        assert all(sorted(line) == [0, 1, 2, 3] for line in (*table, *table.T))
        assert [method.assigned_model(turns[0], client) for client in (1, 5, 9)] == [table[0, 1]] * 3
        ages.append(table.tolist())
    assert ages[0] != ages[1]


def test_a_model_is_the_mean_of_those_that_were_trained_on_it() -> None:
    """In NumPy, round by round; with three of ten clients some models stay as they are."""
    population = federation(cohort_size=3, rounds=3)
    method = FedEnsemble(mode="permutation", models=4)
    state: Any = method.init_server_state(population.context(0))
    loader, stayed = SerialPool(method, population).worker.loader, 0
    starts = [value["head.weight"] for value in state.params.values()]
    assert not any(torch.equal(a, b) for at, a in enumerate(starts) for b in starts[:at])
    for number, result in enumerate(run(method, population)):
        ctx, made = population.context(number), dict[int, list[tuple[Any, int]]]()
        for client in result.cohort:
            sent = method.instruct_client(ctx, state, client)
            task = loader.make_task(method, ctx, client, {}, sent, None)
            model = method.train_client(ctx, task).upload["params"]["head.weight"].double().numpy()
            made.setdefault(method.assigned_model(ctx, client), []).append((model, task.num_examples))
        for m in range(4):
            found, held = (s.params[str(m)]["head.weight"].numpy() for s in (result.state, state))
            if m in made:
                models, sizes = zip(*made[m], strict=True)
                np.testing.assert_allclose(found, np.average(models, axis=0, weights=sizes), rtol=1e-5)
            else:
                stayed += 1
                np.testing.assert_array_equal(found, held)
        state = result.state
    assert stayed
    x = torch.from_numpy(population.dataset.test.x.copy())
    said = [softmax(population.nets[0](w, x).double().numpy()) for w in state.params.values()]
    found = method.predict(population.context(2), method.ensemble(state), x)
    np.testing.assert_allclose(found.exp().numpy(), np.mean(said, axis=0), rtol=1e-4, atol=1e-7)


def test_one_model_in_turns_is_fedavg() -> None:
    population = federation(cohort_size=4, rounds=2)
    plain = run(FedAvg(), population)[-1].state.params
    alone = run(FedEnsemble(mode="permutation", models=1), population)[-1].state.params["0"]
    for key, value in plain.items():
        torch.testing.assert_close(alone[key], value)
