"""FedCL: identities, Eq. 21 against the direct mean, the generator's loss in NumPy, freezing, bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedCL
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import LocalTraining, ReducedUpdates
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.techniques.last_models import (
    EQUAL_POWERS,
    advance_sums,
    init_sums,
    make_client_part,
    make_teacher,
)
from fedsim.techniques.learning_phases import PhaseState
from tests.fedsim.algorithms.test_fedcl_clients import entropies, superloss
from tests.fedsim.algorithms.test_fedgen import digits
from tests.fedsim.federations import federation
from tests.fedsim.methods import FREEZING, MOMENTUM, QUICK, run, same_models

LIGHT = QUICK["fedcl"]
PLAIN: dict[str, Any] = {"alpha": 0.0, "superloss": False, "levels": (), "average": "cohort"}
CPU = torch.device("cpu")


def one_round(method: FedCL, population: Population, round: int, state: Any) -> ReducedUpdates:
    """What the cohort 1, 5, 9 sends in a round."""
    return SerialPool(method, population).begin_training(population.context(round), state, [1, 5, 9])()


def test_without_its_extras_it_is_fedavg_bit_for_bit() -> None:
    population = federation(local=MOMENTUM, cohort_size=4, rounds=3)
    assert same_models(FedAvg(), FedCL(**PLAIN), population)
    # Phases change who comes and not what is learnt: nothing, as long as nobody is frozen.
    everybody = federation([8, 11, 16], local=MOMENTUM, rounds=2)
    assert same_models(FedAvg(), FedCL(**{**PLAIN, "levels": (0.3,)}, v=1.0), everybody)


def test_each_extra_alone_and_every_option_makes_a_difference() -> None:
    population = federation(cohort_size=4, rounds=6, local=LocalTraining(steps=2, batch_size=8, lr=0.1))
    options: list[dict[str, Any]] = [
        {"superloss": True},
        {"superloss": True, "lambda_cl": 1.0},
        {"superloss": True, "tau_classes": 5.0},
        {"superloss": True, "tau": 10.0},
        {"alpha": 1.0, **LIGHT},
        {"alpha": 1.0, "beta": 1.0, **LIGHT},
        {"average": "all"},
        {"levels": (0.9,), "v": 0.1},
        {"levels": (0.9, 0.5, 0.1), "v": 0.3, "draws": 20},
        {"levels": (0.9, 0.5, 0.1), "v": 0.3, "draws": 20, "order": "descending"},
    ]
    methods = [FedAvg(), *(FedCL(**{**PLAIN, **each}) for each in options)]
    ends = [run(method, population)[-1].state.params["head.weight"] for method in methods]
    for at, one in enumerate(ends):
        assert not any(torch.equal(one, other) for other in ends[:at]), options[at - 1]


def test_with_all_the_model_is_the_mean_of_the_last_models_of_all_who_came() -> None:
    """Eq. 21 where few of ten come, some are frozen, and one of those that came holds nothing."""
    population = federation([3, 8, 11, 0, 17, 20, 24, 25, 30, 38], cohort_size=3, rounds=12)
    method = FedCL(**LIGHT, levels=(0.8, 0.9), v=0.6, cap=6, average="all")
    pool = SerialPool(method, population)
    seen: set[int] = set()
    frozen: set[int] = set()
    for result in simulate(method, population, pool):
        seen |= set(result.cohort)
        frozen |= set(result.method["frozen"]) - set(result.cohort)
        memories = pool.client_states()
        models = [memories[k]["model"] for k in sorted(seen - {3})]
        assert float(result.state.sums["mean"]["mass"]) == len(models)
        for key, value in result.state.params.items():
            direct = np.mean([model[key].double().numpy() for model in models], 0)
            np.testing.assert_allclose(value.numpy(), direct, rtol=1e-6, atol=1e-9)
    assert 3 in seen
    assert len(seen) > 6
    assert len(frozen) > 2


def test_the_running_sum_stays_the_direct_mean_over_300_rounds() -> None:
    """10 of 200 clients in each; the numbers are large, so that what rounding leaves over would show."""
    chance, models, seen = np.random.default_rng(1), np.zeros((200, 3)), np.zeros(200, np.int64)
    sums, examples = init_sums(EQUAL_POWERS, {"w": torch.zeros(3)}), torch.tensor(7)
    for _ in range(300):
        came: Any = None
        for k in chance.choice(200, 10, replace=False):
            new, age = 1e4 + chance.normal(size=3), torch.tensor(0)
            old = {"w": torch.from_numpy(models[k].copy())}
            now, before = torch.tensor(seen[k] + 1), torch.tensor(seen[k])
            [powers] = EQUAL_POWERS.values()
            part = make_client_part(powers, {"w": torch.from_numpy(new)}, age, now, examples)
            change = {"mean": tree.sub(part, make_client_part(powers, old, age, before, examples))}
            came = change if came is None else tree.add(came, change)
            models[k], seen[k] = new, seen[k] + 1
        sums = advance_sums(EQUAL_POWERS, sums, came)
    found = make_teacher(sums, {"w": torch.zeros(3, dtype=torch.float64)})["w"].numpy()
    np.testing.assert_allclose(found, models[seen > 0].mean(0), rtol=1e-13)


def test_a_model_that_has_diverged_does_not_stop_the_run() -> None:
    population = federation([20, 20], rounds=2, local=LocalTraining(steps=8, batch_size=8, lr=1e20))
    results = run(FedCL(**LIGHT), population)
    said = [(result.method["frozen_clients"], result.method["left"]) for result in results]
    assert said == [(0, "cap"), (0, "cap")]  # nobody has learnt anything
    assert [float(result.state.counts.sum()) for result in results] == [40, 40]  # told once, counted once


def test_a_cohort_of_those_who_hold_nothing_does_not_stop_the_run() -> None:
    """The last one that is not frozen may be one without examples: its model counts for nothing."""
    population = federation([0, 20, 20], cohort_size=1, rounds=8)
    results = run(FedCL(**LIGHT, levels=(0.9,), v=0.0, finished=1.0, cap=8), population)
    assert (0,) in [result.cohort for result in results]
    assert {len(result.cohort) for result in results} == {1}
    assert all(torch.isfinite(value).all() for value in results[-1].state.params.values())
    assert "share" in [result.method["left"] for result in results]


def test_the_generators_loss_is_numpys() -> None:
    """Eq. 18: the SuperLoss of the plain mean of the cohort's logits; clients of 8, 20 and 38 examples."""
    method, population = FedCL(**LIGHT), federation()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = one_round(method, population, 0, state)
    wanted = torch.tensor([0, 1, 2, 3, 0, 1])
    made = torch.randn(6, reduced["heads"][0]["head.weight"].shape[1])
    found = method.critic(ctx, state, reduced, CPU)(made, wanted)
    logits = [
        made.double().numpy() @ head["head.weight"].double().numpy().T + head["head.bias"].double().numpy()
        for head in reduced["heads"]
    ]
    expected = superloss(entropies(np.mean(logits, 0), wanted.numpy())).mean()
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_server_knows_labels_and_difficulties_of_all_who_came() -> None:
    method, population = FedCL(**LIGHT, cap=9), federation()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = one_round(method, population, 0, state)
    once = method.aggregate(ctx, state, reduced)
    twice = method.aggregate(population.context(1), once, one_round(method, population, 1, once))
    y, offsets = population.dataset.train.y, np.cumsum([0, 3, 8, 11, 16, 17, 20, 24, 25, 30, 38])
    held = np.concatenate([y[offsets[k] : offsets[k + 1]] for k in (1, 5, 9)])
    for now in (once, twice):  # who came again is not counted again
        assert now.counts.tolist() == np.bincount(held, minlength=4).tolist()
        np.testing.assert_allclose(now.labels.numpy(), now.counts.numpy() / len(held), rtol=1e-6)
        told = ~torch.isnan(now.draws)
        assert told.all(1).nonzero().flatten().tolist() == [1, 5, 9]
        assert told.sum() == 3 * 20
    assert not torch.equal(once.draws[1], twice.draws[1])
    assert once.standing.threshold == np.quantile(once.draws[[1, 5, 9]], 0.3, method="inverted_cdf")
    assert twice.standing.threshold == once.standing.threshold


def test_bytes_on_the_papers_cnn() -> None:
    """26,434 + 20,000 + 10 + 100 floats down, 26,434 + 10 + 3 L up; and 44 and 512 running statistics."""
    first, second = (result.traffic for result in run(FedCL(generator_steps=2, cap=9), digits()))
    model, generator = 4 * (26_434 + 44), 4 * (20_000 + 512)
    up = model + 4 * (10 + 3 * 3)
    assert (first.down, first.up) == (2 * model, 2 * up)
    assert (second.down, second.up) == (2 * (model + generator + 4 * (10 + 100)), 2 * up)
    sent = {"generator": 2 * generator, "difficulties": 2 * 400, "difficulty": 2 * 36, "labels": 4 * 40}
    assert second.by_payload == {"params": 4 * model, **sent}


@pytest.fixture(scope="module")
def freezing() -> list[RoundResult]:
    """A run in which phases end by share, or by cap, before it does."""
    return run(FedCL(**FREEZING), federation(cohort_size=6, rounds=14))


def test_frozen_clients_neither_receive_nor_send(freezing: list[RoundResult]) -> None:
    population = federation()
    model, labels, mixture = 4 * population.nets[0].count_parameters(), 4 * 4, 4 * 9
    generator = 4 * sum(v.numel() for v in freezing[0].state.generator["params"].values())
    frozen: list[int] = []
    for result in freezing:
        said, came = result.method, len(result.cohort)
        assert not set(frozen) & set(result.cohort)
        assert came == min(6, 10 - len(frozen))
        down = model + (generator + labels + 4 * FREEZING["draws"] if result.round > 1 else 0)
        assert (result.traffic.down, result.traffic.up) == (came * down, came * (model + labels + mixture))
        assert said["frozen_clients"] == len(said["frozen"])
        assert said["newly_frozen"] == sorted(set(said["frozen"]) - set(frozen))
        frozen = [] if said["left"] else said["frozen"]
    assert min(len(result.cohort) for result in freezing) < 6


def test_a_record_says_what_was_decided(freezing: list[RoundResult]) -> None:
    assert [each for r in freezing if (each := r.method["left"])] in (["share", "share"], ["share", "cap"])
    phases = [r.method["phase"] for r in freezing]
    assert sorted(set(phases)) == ["1 of 2", "2 of 2", "over"]
    for result in freezing:
        said = result.method
        assert said["level"] == {"1 of 2": 0.9, "2 of 2": 0.6, "over": None}[said["phase"]]
        assert len(said["quantiles"]) == 2
        assert said["generator_loss"] != 0
        assert said["phase"] != "over" or said["frozen"] == []
    thresholds = {(r.method["phase"], r.method["threshold"]) for r in freezing}
    assert len(thresholds) == 3  # one of each phase; the last is held on


def test_the_scored_model_and_wrappers_around_it() -> None:
    population = federation(cohort_size=3, rounds=2)
    wrapped = DataCurriculum(base=FedCL(**LIGHT, cap=5), score="local_loss")
    for result in run(wrapped, population):
        assert result.method["phase"] == "1 of 3"
        assert result.traffic.by_payload["difficulty"] == 3 * 36
    trained, received = (
        run(FedCL(**LIGHT, scored_by=who), population)[0].state.draws for who in ("trained", "received")
    )
    assert torch.nanmean(trained) < torch.nanmean(received)
    with pytest.raises(ValueError, match="chooses its clients itself"):
        ClientCurriculum(base=FedCL())


def test_the_generator_is_asked_for_what_clients_will_ask() -> None:
    """Labels as all clients hold them, difficulties out of the draws."""
    method, population = FedCL(**LIGHT), federation()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = one_round(method, population, 0, state)
    state = method.aggregate(ctx, state, reduced)
    labels, scalars = method.generator_batches(ctx, state, reduced, np.random.default_rng(0))
    assert np.shape(labels) == (6, 8)
    assert np.shape(scalars) == (6, 8, 1)
    assert np.isin(np.ravel(scalars), state.draws[[1, 5, 9]].float().numpy()).all()
    sent = method.broadcast(population.context(1), state)["difficulties"]["quantiles"].numpy()
    pool = np.sort(state.draws[[1, 5, 9]].numpy(), axis=None)
    np.testing.assert_array_equal(sent, pool[1::3].astype(np.float32))  # the middle of each third of 60
    # As often as all clients hold them (Eq. 18), and never what nobody holds.
    uneven, chance = (
        replace(state, counts=torch.tensor([20.0, 0.0, 5.0, 75.0]).double()),
        np.random.default_rng(1),
    )
    many = (
        FedCL(**{**LIGHT, "generator_batch_size": 2000})
        .generator_batches(ctx, uneven, reduced, chance)
        .labels
    )
    shares = np.bincount(np.ravel(many), minlength=4) / np.size(many)
    np.testing.assert_allclose(shares, [0.2, 0, 0.05, 0.75], atol=0.02)
    assert shares[1] == 0
    plain = FedCL(**LIGHT, levels=[])
    other = plain.aggregate(ctx, plain.init_server_state(ctx), reduced)
    assert isinstance(other.standing, PhaseState)
    told = plain.broadcast(population.context(1), other)["difficulties"]["quantiles"].numpy()
    np.testing.assert_array_equal(told, sent)  # phases change who comes, and not what is asked for
    assert "phase" not in plain.describe_round(ctx, other)
