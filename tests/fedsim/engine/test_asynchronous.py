"""Asynchronous rounds: identities with synchronous ones, the papers' steps in NumPy, pools, resumed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, FedAvgM, FedPer, FedProx
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous, FedAsync, FedBuff, SemiAsynchronous, explain_waiting
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Equal, FileRows, Lognormal
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, LocalTraining
from fedsim.engine.faults import Faults
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.server_messages import make_broadcasts
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import CohortFailed, SettingsError
from fedsim.models import make_net
from fedsim.models.net import InputForm, Net
from fedsim.samplers import CohortSampling
from fedsim.samplers.samplers import RoundRobin
from fedsim.uploads import PrivateUpdates, RobustAggregation
from fedsim.uploads.aggregators import Median
from tests.fedsim.federations import federation
from tests.fedsim.handmade import build_normed
from tests.fedsim.linear_models import linear
from tests.fedsim.methods import quick
from tests.fedsim.replay import Array, Client, start

FLEET = Lognormal(gflops=2e-3, down_mbps=1.0, up_mbps=0.2, joules_per_gflop=1.0, spread=1.0)
BUFF = Devices(fleet=FLEET, policy=FedBuff(buffer=2))
ASYNC = Devices(fleet=FLEET, policy=FedAsync())

SUITABLE = sorted(name for name in ALGORITHMS if not explain_waiting(quick(name)))


def run(
    population: Population, devices: Devices | None, algorithm: Algorithm | None = None, **options: Any
) -> list[RoundResult]:
    method = algorithm or FedAvg()
    return list(simulate(method, population, SerialPool(method, population), devices=devices, **options))


def list_updates(results: Sequence[RoundResult]) -> list[list[tuple[int, int]]]:
    """(client, version) of every update, by server step: who was not in flight before has the newest one."""
    held: list[dict[int, int]] = [{}]
    for result in results[:-1]:
        assert result.in_flight is not None
        held.append({flight.client: flight.version for flight in result.in_flight.flights})
    return [
        [(client, held[number].get(client, number)) for client in result.cohort]
        for number, result in enumerate(results)
    ]


def model_of(result: RoundResult) -> Array:
    params = result.state.params
    return np.hstack([params["head.weight"].numpy(), params["head.bias"].numpy()[:, None]])


# identities


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("fedavg", "fedper") else pytest.param(name, marks=pytest.mark.slow)
        for name in SUITABLE
    ],
)
def test_with_equal_speeds_a_buffer_of_all_is_a_round(name: str) -> None:
    """Clients as fast as each other arrive together: buffer = clients in flight gives every digest."""
    population = federation([12] * 9, cohort_size=4, rounds=3)
    fleet = Equal(gflops=1e-3, up_mbps=0.1)
    plain = run(population, Devices(fleet=fleet), quick(name))
    found = run(population, Devices(fleet=fleet, policy=FedBuff(buffer=4)), quick(name))
    for one, other in zip(plain, found, strict=True):
        assert (one.cohort, one.digest, one.memory_digest) == (
            other.cohort,
            other.digest,
            other.memory_digest,
        )
        assert (one.metrics, one.traffic, one.cost) == (other.metrics, other.traffic, other.cost)
        assert one.clock is not None
        assert other.clock is not None
        assert (one.clock.total, one.clock.joules) == (other.clock.total, other.clock.joules)
        assert (other.clock.staleness, other.clock.max_staleness) == (0, 0)


def test_a_late_deadline_is_a_round() -> None:
    population = federation(cohort_size=4, rounds=3)
    plain = run(population, Devices(fleet=FLEET))
    found = run(population, Devices(fleet=FLEET, policy=SemiAsynchronous(seconds=1e6)))
    for one, other in zip(plain, found, strict=True):
        assert (one.digest, one.traffic, one.cost) == (other.digest, other.traffic, other.cost)
        assert one.clock is not None
        assert other.clock is not None
        assert one.clock.total == pytest.approx(other.clock.total)
        assert one.clock.waited_for == other.clock.waited_for
        assert one.clock.idle == pytest.approx(other.clock.idle)
        assert one.clock.joules == pytest.approx(other.clock.joules)


def test_without_dampening_one_client_is_fedavg() -> None:
    """One client in flight and alpha 1: each step is a round of a cohort of one."""
    population = federation(cohort_size=1, rounds=5)
    plain = [result.digest for result in run(population, None)]
    assert [each.digest for each in run(population, replace(ASYNC, policy=FedAsync(alpha=1.0)))] == plain
    assert [each.digest for each in run(population, replace(BUFF, policy=FedBuff(buffer=1)))] == plain


# the papers' steps in NumPy


def test_fedasync_with_one_client_in_flight_by_hand() -> None:
    """Algorithm 1 of Xie et al. with the proximal term: w <- (1 - alpha) w + alpha w_k."""
    population = linear(cohort_size=1, rounds=8)
    devices = Devices(fleet=Equal(gflops=1.0), policy=FedAsync(alpha=0.4))
    results, w = run(population, devices, FedProx(mu=0.5)), start(population)
    for number, result in enumerate(results):
        [client] = result.cohort
        trained = Client(population, number, client).sgd(w, lambda v, w=w: 0.5 * (v - w))  # type: ignore[misc]
        w = 0.6 * w + 0.4 * trained
        np.testing.assert_allclose(model_of(result), w, atol=2e-6)


POLICIES = [
    FedAsync(alpha=0.7),
    FedAsync(staleness="hinge", a=3.0, b=1),
    FedBuff(buffer=3),
    FedBuff(buffer=2, staleness="constant"),
    SemiAsynchronous(seconds=0.01),
]


def damp(policy: Asynchronous, t: int) -> float:
    """The functions of the papers once more."""
    if policy.staleness == "constant":
        return 1.0
    if policy.staleness == "polynomial":
        return float(1 / np.sqrt(1 + t))
    return 1.0 if t <= 1 else 1 / (3 * (t - 1) + 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_server_steps_by_hand(policy: Asynchronous) -> None:
    population = linear(cohort_size=4, rounds=12)
    results = run(population, replace(BUFF, policy=policy))
    models, stale = [start(population)], []
    for number, updates in enumerate(list_updates(results)):
        w, step, mass = models[-1], np.zeros_like(models[-1]), 0
        for client, version in updates:
            task, age = Client(population, version, client), number - version
            trained = task.sgd(models[version])
            if isinstance(policy, FedAsync):
                step += policy.alpha * damp(policy, age) * task.examples * (trained - w)
            else:
                step += damp(policy, age) * task.examples * (trained - models[version])
            mass += task.examples
            stale.append(age)
        models.append(w + step / mass)
        np.testing.assert_allclose(model_of(results[number]), models[-1], atol=2e-6)
    assert max(stale) >= 2


def test_the_server_optimizer_gets_the_mean_of_the_buffer() -> None:
    """FedAvgM: v <- beta v + the damped mean of the changes, w <- w + v."""
    population = linear(cohort_size=4, rounds=6)
    results = run(population, replace(BUFF, policy=FedBuff(buffer=3)), FedAvgM(beta=0.5))
    w, velocity = [start(population)], 0.0
    for number, updates in enumerate(list_updates(results)):
        step, mass = np.zeros_like(w[0]), 0
        for client, version in updates:
            task = Client(population, version, client)
            step += task.examples * (1 + number - version) ** -0.5 * (task.sgd(w[version]) - w[version])
            mass += task.examples
        velocity = 0.5 * velocity + step / mass
        w.append(w[-1] + velocity)
        np.testing.assert_allclose(model_of(results[number]), w[-1], atol=2e-6)


def test_statistics_of_normalisation_layers_stay_variances() -> None:
    """Statistics move towards those of the clients, also where changes are added to the parameters."""
    population = federation([12] * 6, cohort_size=4, rounds=6)
    normed = Net(build_normed, "normed", inputs=InputForm((12,)))
    results = run(replace(population, nets=(normed,)), replace(BUFF, policy=FedBuff(buffer=2)))
    assert all(
        (value > 0).all()
        for result in results
        for key, value in result.state.params.items()
        if key.endswith("running_var")
    )
    assert any(result.clock and result.clock.max_staleness for result in results)


# the record


def test_seconds_joules_and_bytes_of_server_steps() -> None:
    """Three clients that take 1, 2 and 5.5 seconds, all in flight; a step takes two updates."""
    population = federation([10, 10, 10], rounds=4, cohort_size=3)
    flops = run(population, None)[0].cost.flops / 3
    fleet = FileRows({"gflops": flops / 1e9 / np.array([1.0, 2.0, 5.5]), "joules_per_gflop": np.full(3, 6.0)})
    results = run(population, Devices(fleet=fleet, policy=FedBuff(buffer=2)))
    readings = [result.clock for result in results if result.clock]
    # Client 0 arrives at 1, and the step is at 2. Then both begin again. Client 2 began at 0.
    assert [result.cohort for result in results] == [(0, 1), (0, 1), (0, 2), (1, 0)]
    assert [each.total for each in readings] == pytest.approx([2, 4, 5.5, 6.5])
    assert [each.round for each in readings] == pytest.approx([2, 2, 1.5, 1])
    assert [each.waited_for for each in readings] == [1, 1, 2, 0]
    assert [each.staleness for each in readings] == [0, 0, 1, 0.5]
    assert [each.max_staleness for each in readings] == [0, 0, 2, 1]
    assert [each.joules for each in readings] == pytest.approx([2 * flops * 6 / 1e9] * 4)
    assert all(each.idle == 0 for each in readings)
    assert [each[:1] for each in readings[2].timeline] == [(0,), (2,)]
    assert [each.start for each in readings[2].timeline] == pytest.approx([4, 0])
    assert [each.end for each in readings[2].timeline] == pytest.approx([5, 5.5])
    assert [result.cost.flops for result in results] == [pytest.approx(2 * flops)] * 4
    assert len({result.traffic.down for result in results}) == 1


def test_a_client_that_vanishes_costs_its_download_and_its_energy() -> None:
    population = federation(cohort_size=5, rounds=12)
    results = run(population, replace(BUFF, dropout=0.5))
    whole = run(population, BUFF)[0].traffic.down // 2
    for result in results:
        assert result.clock is not None
        assert result.traffic.down == whole * (2 + len(result.clock.left_out))
        assert result.traffic.up == whole * 2
    assert any(result.clock and result.clock.left_out for result in results)


def test_a_version_is_kept_as_long_as_a_client_has_it() -> None:
    population = federation(cohort_size=4, rounds=20)
    for number, result in enumerate(run(population, ASYNC), start=1):
        assert result.in_flight is not None
        flights = result.in_flight.flights
        assert set(result.in_flight.states) == {flight.version for flight in flights}
        assert max(result.in_flight.states) < number


# who may


def test_which_algorithms_need_no_rounds() -> None:
    assert {"fedavg", "fedprox", "fedavgm", "fedadam", "moon", "fedper", "ditto", "fedbabu"} <= set(SUITABLE)
    assert not {"scaffold", "feddyn", "fednova", "fedcl", "kdia", "layer_schedule"} & set(SUITABLE)


@pytest.mark.parametrize("name", SUITABLE)
def test_a_suitable_algorithm_sends_its_model_alone(name: str) -> None:
    population, algorithm = federation(cohort_size=3, rounds=4), quick(name)
    for result in run(population, replace(ASYNC, policy=FedAsync()), algorithm):
        sent = make_broadcasts(algorithm, population.context(result.round), result.state)["0"]
        assert set(sent) == {"params"}


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (quick("scaffold"), "clients also send the payload control"),
        (quick("feddyn"), "FedDyn needs rounds"),
        (quick("fedcl"), "chooses the clients"),
        (quick("kt_pfl"), "KTpFL needs rounds|more than the model"),
        (CohortSampling(base=FedAvg(), sampler=RoundRobin()), "chooses the clients"),
        (RobustAggregation(base=FedAvg(), aggregator=Median()), "no mean of the clients' models"),
        (PrivateUpdates(base=FedAvg(), noise_multiplier=1.0, kind="local"), "PrivateUpdates needs rounds"),
    ],
)
def test_what_needs_rounds_is_refused(algorithm: Algorithm, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        run(federation(cohort_size=3), BUFF, algorithm)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match="cannot fill a buffer of 11"):
        run(federation(), replace(BUFF, policy=FedBuff(buffer=11)))
    state = run(federation(), None)[0].state
    with pytest.raises(SettingsError, match="no clients in flight"):
        run(federation(), BUFF, resume=Checkpoint(round=1, state=state))


# pools and resumed runs


SEMI = replace(BUFF, policy=SemiAsynchronous(seconds=0.2), dropout=0.2)


@pytest.mark.parametrize("devices", [BUFF, replace(ASYNC, dropout=0.2), SEMI])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedPer()])
def test_a_run_goes_on_in_the_middle(algorithm: Algorithm, devices: Devices) -> None:
    population, pool = federation(cohort_size=5, rounds=9), None
    pool = SerialPool(algorithm, population)
    whole = run(population, devices, algorithm)
    half = [
        (result, dict(pool.client_states()))
        for result, _ in zip(simulate(algorithm, population, pool, devices=devices), range(4), strict=False)
    ]
    result, states = half[-1]
    point = Checkpoint(round=4, state=result.state, client_states=[states], in_flight=result.in_flight)
    rest = run(population, devices, algorithm, resume=point)
    for one, other in zip(whole[4:], rest, strict=True):
        assert (one.digest, one.memory_digest, one.cohort) == (
            other.digest,
            other.memory_digest,
            other.cohort,
        )
        assert (one.clock, one.in_flight and one.in_flight.flights) == (
            other.clock,
            other.in_flight and other.in_flight.flights,
        )


def test_stacks_give_the_same_models() -> None:
    population, algorithm = federation(cohort_size=6, rounds=4), FedAvg()
    serial = run(population, BUFF)
    stacked = list(simulate(algorithm, population, StackedPool(algorithm, population, 4), devices=BUFF))
    for one, other in zip(serial, stacked, strict=True):
        assert (one.cohort, one.clock) == (other.cohort, other.clock)
        np.testing.assert_allclose(
            tree.flatten(one.state.params), tree.flatten(other.state.params), atol=1e-5
        )


def test_several_architectures() -> None:
    population = federation(cohort_size=5, rounds=6)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    population = replace(population, nets=tuple(make_net(name, **shape) for name in ("mlp", "logistic")))
    results = run(population, replace(BUFF, policy=FedBuff(buffer=3)))
    for before, after in pairwise(results):
        came = {str(client % 2) for client in after.cohort}
        moved = {
            number
            for number in ("0", "1")
            if not torch.equal(
                tree.flatten(before.state.params[number]), tree.flatten(after.state.params[number])
            )
        }
        assert moved == came


class Counting(FedAvg):
    """Clients with an even number report it."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        update = super().train_client(ctx, task)
        own = {} if task.client % 2 else {"number": float(task.client)}
        return update._replace(metrics={**own, **update.metrics})


@pytest.mark.parametrize("policy", [None, FedBuff(buffer=3), FedAsync()], ids=str)
def test_a_metric_is_a_mean_over_the_clients_that_report_it(policy: Asynchronous | None) -> None:
    """In the last case each step has one client, which reports it or does not."""
    population = federation(cohort_size=5, rounds=8)
    devices = None if policy is None else replace(BUFF, policy=policy)
    for result in run(population, devices, Counting()):
        even = [client for client in result.cohort if client % 2 == 0]
        sizes = [population.partition.size(client) for client in even]
        expected = pytest.approx(np.average(even, weights=sizes)) if even else None
        assert result.metrics.get("number") == expected
        assert result.metrics["train_loss"] > 0


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """Raises at these clients, but in the size probe, which has no examples."""

    clients: tuple[int, ...]

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        if task.client in self.clients and task.num_examples:
            raise ZeroDivisionError("no examples of class 3")
        return super().train_client(ctx, task)


def test_clients_that_fail_are_left_out() -> None:
    """Also if they are all clients of their version."""
    population = federation(cohort_size=4, rounds=8)
    algorithm = Broken(clients=(2, 5))
    pool = SerialPool(algorithm, population, faults=Faults(client_error="skip"))
    results = list(simulate(algorithm, population, pool, devices=BUFF))
    assert {client for result in results for client in result.failed} == {2, 5}
    for result in results:
        assert set(result.failed) == {2, 5} & set(result.cohort)
        errors = result.engine.get("client_errors", {})
        assert sorted(errors) == sorted(map(str, result.failed))


def test_a_step_without_updates_leaves_the_model_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    population, faults = federation(cohort_size=4, rounds=8), Faults(client_error="skip")
    algorithm = Broken(clients=(2, 5))
    results = list(
        simulate(algorithm, population, SerialPool(algorithm, population, faults=faults), devices=ASYNC)
    )
    assert {result.failed for result in results} == {(), (2,), (5,)}
    for before, after in pairwise(results):
        assert (before.digest == after.digest) == bool(after.failed)
    # They are, but not for lack of examples.
    assert not any("all client weights are 0" in line for line in caplog.messages)
    broken = Broken(clients=tuple(range(1, 10)))
    with pytest.raises(CohortFailed, match=r"4 updates in a row failed; client [0-9]: ZeroDivisionError"):
        list(simulate(broken, population, SerialPool(broken, population, faults=faults), devices=ASYNC))


def test_many_failures_name_a_client_with_its_cause() -> None:
    """The record has the causes of five clients, and the first of the buffer need not be among them."""
    population = federation([16] * 10, cohort_size=10, rounds=2)
    devices, faults = replace(BUFF, policy=FedBuff(buffer=10)), Faults(client_error="skip")
    broken = Broken(clients=tuple(range(10)))
    for seed in range(3):
        seeded = replace(population, settings=replace(population.settings, seed=seed))
        with pytest.raises(
            CohortFailed, match=r"10 updates in a row failed; client [0-4]: ZeroDivisionError"
        ):
            list(simulate(broken, seeded, SerialPool(broken, seeded, faults=faults), devices=devices))


def test_clients_without_examples_leave_the_model_as_it_is() -> None:
    population = federation([0, 0, 0, 40], cohort_size=2, rounds=8, local=LocalTraining(batch_size=8))
    results = run(population, replace(BUFF, policy=FedBuff(buffer=1)))
    for before, after in pairwise(results):
        assert (before.digest == after.digest) == (after.cohort != (3,))
