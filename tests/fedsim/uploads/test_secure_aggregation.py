"""Secure aggregation: the models of the base algorithm, bytes by hand, incomplete rounds, who is served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, FedPer, Scaffold
from fedsim.base import tree
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import FLEETS
from fedsim.core import Algorithm, ReducedUpdates, Traffic
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate
from fedsim.samplers import CohortSampling
from fedsim.samplers.availability import Availability
from fedsim.uploads import PrivateExamples, PrivateUpdates, SecureAggregation, TiltedWeights
from fedsim.uploads.server_view import explain_single_reads
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run

SERVED = [name for name in ALGORITHMS if not explain_single_reads(ALGORITHMS[name])]


def secure(base: Algorithm | None = None, **changes: Any) -> SecureAggregation:
    return SecureAggregation(base=base or FedAvg(), **changes)


def params(result: Any) -> Any:
    return tree.flatten(result.state.params)


def test_which_algorithms_are_served() -> None:
    assert sorted(SERVED) == [
        *("apfl", "cd2_pfed", "ditto", "fedadagrad", "fedadam", "fedala", "fedavg", "fedavgm", "fedbabu"),
        *("fedbn", "fedcog", "feddc", "feddyn", "fedexp", "fedgkd", "fedlc", "fedntd", "fedper", "fedprox"),
        *("fedrep", "fedrod", "fedrs", "fedsam", "fedyogi", "layer_schedule", "lg_fedavg", "mimelite"),
        *("moon", "per_fedavg", "pfedme", "qfedavg", "scaffold"),
    ]


@pytest.mark.parametrize(
    "name", [n if n in ("fedavg", "scaffold") else pytest.param(n, marks=pytest.mark.slow) for n in SERVED]
)
def test_the_models_are_those_of_the_base_algorithm(name: str) -> None:
    population = federation([16] * 6, rounds=3)
    plain = run(quick(name), population)
    for one, other in zip(plain, run(secure(quick(name)), population), strict=True):
        assert torch.equal(params(other), params(one))
        assert other.metrics == one.metrics
        assert other.traffic.personal == one.traffic.personal
        assert other.method["secure_aggregation"] == {"neighbours": 5, "incomplete": False}


@pytest.mark.parametrize(("neighbours", "k"), [(None, 9), (4, 4)])
def test_the_bytes_by_hand(neighbours: int | None, k: int) -> None:
    population = federation([16] * 10, rounds=1)
    numbers = population.nets[0].count_parameters()
    [result] = run(secure(neighbours=neighbours), population)
    # 10 numbers of 32 bits add up to at most 36 bits; the weight of a client is one more number.
    masked, weight = -(-numbers * 36 // 8), 5
    # 2 keys; a nonce, a tag, an id and 2 shares for each neighbour; in the end a share of each, with its id.
    up = 2 * 32 + k * (12 + 16 + 4 + 2 * 32) + k * (32 + 4)
    down = k * (2 * 32 + 4) + k * (12 + 16 + 4 + 2 * 32) + -(-k // 8)
    assert result.traffic.by_payload == {
        "params": 10 * (4 * numbers + masked),
        "secure_aggregation": 10 * (weight + up + down),
    }
    assert result.traffic.up == 10 * (masked + weight + up)


def test_a_round_of_too_few_clients_changes_nothing() -> None:
    population, method = federation([16] * 10, rounds=2), secure(Scaffold(), threshold=0.7)
    ctx, began = population.context(0), run(method, population)[0].state
    model = tree.map(lambda value: torch.full_like(value, 9.0).double(), began.params)
    changes = tree.map(torch.Tensor.double, began.base.control)

    def came(clients: int, left_out: int = 2) -> ReducedUpdates:
        each = tuple(range(clients))
        ones = (1,) * clients
        payloads = {"params": model, "control": changes, "secure_aggregation": {"weight": torch.ones(())}}
        gone = {"failed": (8, 9), "left_out": left_out}
        return ReducedUpdates(payloads, each, ones, ones, {}, Traffic(), **gone)

    after = method.aggregate(ctx, began, came(6))
    assert after == replace(began, incomplete=True)
    assert method.describe_round(ctx, after)["secure_aggregation"]["incomplete"]
    after = method.aggregate(ctx, after, came(7, left_out=1))
    assert not after.incomplete
    # Of a sampler or a curriculum that asks fewer than K, fewer are enough.
    assert not method.aggregate(ctx, after, came(6, left_out=0)).incomplete
    assert float(params(replace_state(after)).min()) == 9.0
    # 11 of 20 are 0.55 of them, though 0.55 * 20 is a little more than 11.
    exact = secure(Scaffold(), threshold=0.55)
    assert not exact.aggregate(ctx, began, came(11, left_out=7)).incomplete


@pytest.mark.parametrize("base", [FedAvg(), FedPer()])
def test_private_steps_of_a_lost_round_count_where_clients_keep_them(base: Algorithm) -> None:
    """A head that trained in the lost round shapes later uploads; FedAvg's clients keep nothing of it."""
    pytest.importorskip("opacus")
    population = federation([16] * 10, rounds=6, cohort_size=5)
    private = TiltedWeights(base=PrivateExamples(base=base, noise_multiplier=1.0, delta=1e-3), tilt=1.0)
    method = secure(private, threshold=0.7)
    devices = Devices(fleet=FLEETS["phones"](), dropout=0.4)
    made, lost = torch.zeros(10, dtype=torch.int64), 0
    for result in simulate(method, population, SerialPool(method, population), devices=devices):
        incomplete = result.method["secure_aggregation"]["incomplete"]
        lost += incomplete
        if not incomplete or base.stateful:
            for client in result.cohort:
                made[client] += population.count_steps(client)
        assert torch.equal(result.state.base.steps, made)
    assert lost


def test_devices_that_vanish_count_and_small_cohorts_are_whole() -> None:
    population, method = federation([16] * 10, cohort_size=5, rounds=6), secure(FedAvg(), threshold=0.7)
    devices = Devices(fleet=FLEETS["phones"](), dropout=0.4)
    for result in simulate(method, population, SerialPool(method, population), devices=devices):
        said = result.method["secure_aggregation"]["incomplete"]
        assert said == (len(result.cohort) < 4)
    population = federation([16] * 10, cohort_size=10, rounds=4)
    online = CohortSampling(base=method, sampler=Availability())
    results = list(simulate(online, population, SerialPool(online, population)))
    assert min(len(result.cohort) for result in results) < 7
    assert not any(result.method["secure_aggregation"]["incomplete"] for result in results)


def replace_state(state: Any) -> Any:
    """Wrap a state as a result of a round."""
    return type("Result", (), {"state": state})()


def test_stacks_checkpoints_and_central_privacy() -> None:
    pytest.importorskip("opacus")
    population = federation(cohort_size=6, rounds=3)
    method = secure(PrivateUpdates(base=FedAvg(), clip=0.5, noise_multiplier=0.5), neighbours=3)
    whole = run(method, population)
    assert {"privacy", "secure_aggregation"} <= set(whole[0].method)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(whole, stacked, strict=True):
        assert (one.cohort, one.traffic, one.method) == (other.cohort, other.traffic, other.method)
    middle = Checkpoint(round=1, state=whole[0].state, records=(), client_states=())
    rest = simulate(method, population, SerialPool(method, population), resume=middle)
    assert [each.digest for each in rest] == [each.digest for each in whole[1:]]


def test_what_reads_single_clients_is_refused() -> None:
    for name, reason in {
        "ifca": "the payload cluster of every single client",
        "cfl": "models, which it computes from the clients' models",
        "ace_pfl": "the shares of their labels",
        "fedgen": "the payload labels",
    }.items():
        with pytest.raises(ValueError, match=reason):
            secure(quick(name))
