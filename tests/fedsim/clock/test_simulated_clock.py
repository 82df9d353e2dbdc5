"""The clock around a run: identities without time, rounds by hand, and the same seconds on every pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg
from fedsim.base import costs, tree
from fedsim.clients.population import Population
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Equal, FileRows, Lognormal
from fedsim.clock.policies import Deadline, OverSelection, Policy, Tiers, Wait
from fedsim.clock.profiles import ClientWork
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, ReducedUpdates
from fedsim.engine.faults import Faults
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.round_timing import MessageMeter
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import MethodFailed
from fedsim.models import make_net
from fedsim.samplers import CohortSampling
from fedsim.samplers.samplers import PowerOfChoice
from fedsim.training.flops import example_flops
from tests.fedsim.federations import federation, with_settings
from tests.fedsim.methods import quick

SIZES = [16, 8, 24, 40, 32]
SPEEDS = np.array([1e-4, 2e-4, 5e-5, 1e-4, 4e-4])
UPLINKS = np.array([0.02, 0.08, 0.04, 0.01, 0.02])

EVERY_ALGORITHM = [
    pytest.param(name, marks=() if name in ("fedavg", "scaffold") else pytest.mark.slow)
    for name in sorted(ALGORITHMS)
]

SLOW = Lognormal(gflops=1e-3, down_mbps=0.5, up_mbps=0.1, latency_ms=20, joules_per_gflop=1, spread=1.0)


def run(
    population: Population, devices: Devices | None, algorithm: Algorithm | None = None, **options: Any
) -> list[RoundResult]:
    method = algorithm or FedAvg()
    return list(simulate(method, population, SerialPool(method, population), devices=devices, **options))


def five(policy: Policy, **changes: Any) -> Devices:
    columns = {
        "gflops": SPEEDS,
        "down_mbps": np.full(5, 0.1),
        "up_mbps": UPLINKS,
        "latency_ms": np.full(5, 100.0),
    }
    energy = {"joules_per_gflop": np.full(5, 2.0), "joules_per_mb_up": np.full(5, 10.0)}
    return Devices(fleet=FileRows({**columns, **energy}), policy=policy, **changes)


def five_arrivals(population: Population, epochs: Sequence[int] = (2,) * 5) -> list[float]:
    """Each client's seconds in a round of `five`, from the shapes of the model: an MLP, 12 -> 8 -> 4."""
    weights = sum(value.numel() for value in population.nets[0].init(0).values())
    flops_per_example = 2 * (12 * 8 + 8 * 4) + 2 * (12 * 8) + 2 * 2 * (8 * 4)
    sent = 8 * 4 * weights
    return [
        0.1
        + sent / 0.1e6
        + epochs[client] * SIZES[client] * flops_per_example / (1e9 * SPEEDS[client])
        + sent / (1e6 * UPLINKS[client])
        for client in range(5)
    ]


@pytest.fixture(name="population")
def make_population() -> Population:
    return federation(SIZES, hidden=8, rounds=2)


def test_five_clients_by_hand(population: Population) -> None:
    arrivals = five_arrivals(population)
    first, second = run(population, five(Wait()))
    assert first.clock is not None
    assert second.clock is not None
    assert first.clock.clients == pytest.approx(max(arrivals))
    assert first.clock.waited_for == int(np.argmax(arrivals))
    assert first.clock.idle == pytest.approx(sum(max(arrivals) - each for each in arrivals))
    joules = 2 * first.cost.flops / 1e9 + 10 * first.traffic.up / 1e6
    assert first.clock.joules == pytest.approx(joules)
    assert second.clock.total == pytest.approx(2 * max(arrivals))
    order = sorted(range(5), key=lambda client: arrivals[client])
    assert [time.client for time in second.clock.timeline] == order
    assert {time.start for time in second.clock.timeline} == {first.clock.total}
    assert [time.end - first.clock.total for time in second.clock.timeline] == pytest.approx(sorted(arrivals))
    assert [each.digest for each in (first, second)] == [each.digest for each in run(population, None)]


def test_a_deadline_by_hand(population: Population) -> None:
    arrivals = five_arrivals(population)
    deadline = sorted(arrivals)[2] + 0.01
    result = run(population, five(Deadline(seconds=deadline)))[0]
    assert result.clock is not None
    assert result.cohort == tuple(client for client in range(5) if arrivals[client] <= deadline)
    assert len(result.clock.left_out) == 2
    assert result.clock.waited_for is None
    assert result.clock.clients == deadline
    late = [time for time in result.clock.timeline if not time.counts]
    assert [(time.client, time.end) for time in late] == [
        (client, deadline) for client in result.clock.left_out
    ]
    # All five receive the model, three send it.
    assert result.traffic.down == 5 * result.traffic.up // 3
    assert result.traffic.by_payload["params"] == result.traffic.down + result.traffic.up
    # The mean is that of the three.
    expected = run(only(population, result.cohort), None)[0]
    assert torch.equal(tree.flatten(result.state.params), tree.flatten(expected.state.params))


def only(population: Population, clients: Sequence[int]) -> Population:
    """The same federation, in which the others hold nothing."""
    held = population.partition
    kept = [held.client_positions(client) if client in clients else [] for client in range(held.num_clients)]
    sizes = np.cumsum([0, *map(len, kept)])
    return replace(population, partition=type(held)(np.concatenate(kept).astype(np.int64), sizes))


def test_partial_work_by_hand(population: Population) -> None:
    whole, half = five_arrivals(population), five_arrivals(population, (1,) * 5)
    deadline = max(min(whole), sorted(half)[3] + 0.001)
    result = run(population, five(Deadline(seconds=deadline, partial=True)))[0]
    assert result.clock is not None
    assert result.cohort == tuple(client for client in range(5) if half[client] <= deadline)
    shortened = [client for client in result.cohort if whole[client] > deadline]
    assert shortened
    assert result.clock.shortened == len(shortened)
    # The counted FLOPs are those of the epochs that were made.
    flops = 2 * (12 * 8 + 8 * 4) + 2 * (12 * 8) + 2 * 2 * (8 * 4)
    epochs = {client: 1 if client in shortened else 2 for client in result.cohort}
    assert result.cost.flops == sum(flops * SIZES[client] * epochs[client] for client in result.cohort)
    weights = population.nets[0].count_parameters_of(population.nets[0].keys)
    steps = sum(ceil(SIZES[client] / 8) * epochs[client] for client in result.cohort)
    assert result.cost.updates == steps * weights


class Looking(FedAvg):
    """Compares the steps of each client with those that the server knows of."""

    made: ClassVar[dict[int, int]] = {}
    known: ClassVar[dict[str, dict[int, int]]] = {}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        self.made[task.client] = len(task.batches)
        return super().train_client(ctx, task)

    def note_steps(self, hook: str, ctx: Context) -> None:
        self.known[hook] = {
            client: ctx.for_client(client).local.steps_for(SIZES[client]) for client in self.made
        }

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        self.note_steps("aggregate", ctx)
        return super().aggregate(ctx, state, reduced)

    def deploy_models(self, ctx: Context, state: Any) -> Any:
        self.note_steps("deploy_models", ctx)
        return super().deploy_models(ctx, state)

    def describe_round(self, ctx: Context, state: Any) -> Any:
        self.note_steps("describe_round", ctx)
        return super().describe_round(ctx, state)


def test_the_server_knows_the_partial_work_of_each_client(
    population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looking, "made", {})
    one_round = with_settings(population, rounds=1)
    deadline = sorted(five_arrivals(population, (1,) * 5))[3] + 0.001
    run(one_round, five(Deadline(seconds=deadline, partial=True)), Looking())
    whole = {client: 2 * ceil(SIZES[client] / 8) for client in Looking.made}
    assert Looking.made != whole
    assert Looking.known["aggregate"] == Looking.known["describe_round"] == Looking.made
    assert Looking.known["deploy_models"] == whole  # models are scored without limits


def test_over_selection_by_hand(population: Population) -> None:
    arrivals = five_arrivals(population)
    smaller = replace(population, settings=replace(population.settings, cohort_size=3))
    result = run(smaller, five(OverSelection(factor=1.6)))[0]
    assert result.clock is not None
    ranked = sorted(range(5), key=lambda client: arrivals[client])
    assert result.cohort == tuple(sorted(ranked[:3]))
    assert result.clock.clients == pytest.approx(arrivals[ranked[2]])
    assert result.clock.waited_for == ranked[2]
    assert result.clock.left_out == tuple(sorted(ranked[3:]))


def test_tiers_by_hand(population: Population) -> None:
    """Of five clients, the fast tier has three and the slow tier two."""
    arrivals = five_arrivals(population)
    ranked = sorted(range(5), key=lambda client: arrivals[client])
    short = replace(population, settings=replace(population.settings, cohort_size=1, rounds=12))
    devices = five(Tiers(count=2, probabilities=(0.0, 1.0)))
    found = {client for result in run(short, devices) for client in result.cohort}
    assert found == set(ranked[3:])
    both = {client for result in run(short, five(Tiers(count=2))) for client in result.cohort}
    assert both & set(ranked[:3])
    assert both & set(ranked[3:])


VARYING = ("fedcl_code", "feddisco")
"""Methods whose clients send more, or less, in their first round."""

IDENTITIES = [Wait(), Deadline(seconds=1e9), Deadline(seconds=1e9, partial=True), OverSelection(factor=1.0)]


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_devices_without_delay_change_no_digest(name: str) -> None:
    population = federation(cohort_size=4, rounds=2)
    plain = [result.digest for result in run(population, None, quick(name))]
    for policy in IDENTITIES:
        devices = Devices(fleet=Equal(), policy=policy, server_gflops=1.0)
        found = run(population, devices, quick(name))
        assert [result.digest for result in found] == plain, policy
        assert all(result.clock and not result.clock.left_out for result in found)


def test_one_tier_is_a_uniform_sample() -> None:
    population = federation(cohort_size=4)
    plain = [result.cohort for result in run(population, None)]
    assert [each.cohort for each in run(population, Devices(fleet=SLOW, policy=Tiers(count=1)))] == plain


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_an_upload_is_as_large_as_without_examples(name: str) -> None:
    """The sizes before a round are those of its record; a few methods' uploads depend on the client."""
    population, algorithm = federation(cohort_size=4, rounds=2), quick(name)
    pool = SerialPool(algorithm, population)
    state = next(simulate(algorithm, population, pool)).state
    ctx = population.context(1)
    sizes = MessageMeter(algorithm, population).measure(ctx, state, [1, 4, 6])
    reduced = pool.begin_training(ctx, state, [1, 4, 6])()
    assert [sum(each.values()) for each in sizes.down.values()] == [down for down, _ in reduced.client_bytes]
    if name not in VARYING:
        assert list(sizes.up.values()) == [up for _, up in reduced.client_bytes]
    assert sum(up for _, up in reduced.client_bytes) == reduced.traffic.up


def test_an_upload_is_measured_on_a_cpu_whatever_the_precision_of_the_workers() -> None:
    plain, algorithm = federation(), FedAvg()
    population = with_settings(plain, local=replace(plain.settings.local, precision="tf32"))
    ctx = population.context(0)
    state = algorithm.init_server_state(ctx)
    sizes, expected = (MessageMeter(algorithm, each).measure(ctx, state, [1]) for each in (population, plain))
    assert sizes == expected


def test_an_error_without_examples_is_no_error_of_a_client() -> None:
    class Dividing(FedAvg):
        def weigh_client(self, ctx: Context, task: ClientTask) -> float:
            return 1 / task.num_examples

    pool = SerialPool(Dividing(), federation(), faults=Faults(client_error="skip"))
    devices = Devices(fleet=SLOW, policy=Deadline(seconds=9))
    words = "Dividing failed in the size probe: the upload of a client without examples .*ZeroDivisionError"
    with pytest.raises(MethodFailed, match=words):
        list(simulate(Dividing(), federation(), pool, devices=devices))


def test_the_operations_of_the_server_take_time() -> None:
    population, algorithm = federation(cohort_size=4, rounds=2), quick("feddf")
    results = run(population, Devices(fleet=Equal(), server_gflops=1e-3), algorithm)
    assert all(result.clock and result.clock.server > 0 for result in results)
    assert all(result.clock and result.clock.round == result.clock.server for result in results)
    plain = run(population, Devices(fleet=Equal(), server_gflops=1.0))[0].clock
    assert plain is not None
    assert plain.server == 0  # a mean of models has no counted operation


def test_a_survey_takes_the_time_of_its_slowest_client() -> None:
    """Of two architectures; a client receives its model, passes its examples once and sends one number."""
    population = federation(cohort_size=4, rounds=1)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    population = replace(population, nets=tuple(make_net(name, **shape) for name in ("mlp", "logistic")))
    algorithm = CohortSampling(base=FedAvg(), sampler=PowerOfChoice(candidates=10))
    result = run(population, Devices(fleet=SLOW), algorithm)[0]
    assert result.digest == run(population, None, algorithm)[0].digest
    ctx = population.context(0)
    example = tree.wrap_array(population.dataset.train.x[:1])[0]
    expected = []
    for client in range(10):
        net = ctx.for_client(client).net
        flops = population.partition.size(client) * example_flops(net, (), example)
        work = ClientWork(4 * net.count_parameters_of(net.keys), flops, 4)
        expected.append(SLOW.draw_profile(ctx.seed, client).measure_seconds(work).total)
    assert result.clock is not None
    assert result.clock.survey == pytest.approx(max(expected))
    assert result.clock.round == result.clock.survey + result.clock.clients


def test_clients_that_vanish_are_left_out_and_one_stays() -> None:
    population = federation(cohort_size=6, rounds=6)
    results = run(population, Devices(fleet=SLOW, dropout=0.9))
    assert all(len(result.cohort) + len(result.clock.left_out) == 6 for result in results if result.clock)
    assert all(result.cohort for result in results)
    assert any(len(result.cohort) == 1 for result in results)


def test_a_record_lists_the_first_of_many_clients_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    population = federation(cohort_size=6, rounds=3)
    whole = run(population, Devices(fleet=SLOW, dropout=0.9))
    monkeypatch.setattr(costs, "MOST_LEFT_OUT", 2)
    for full, cut in zip(whole, run(population, Devices(fleet=SLOW, dropout=0.9)), strict=True):
        assert full.clock is not None
        assert cut.clock is not None
        assert cut.clock.left_out == full.clock.left_out[:2]
        assert cut.clock.num_left_out == len(full.clock.left_out) > 2


def test_every_pool_and_a_resumed_run_have_the_same_seconds() -> None:
    population = federation(cohort_size=6, rounds=4)
    slowest = max(each.clock.clients for each in run(population, Devices(fleet=SLOW)) if each.clock)
    for policy in (Wait(), Deadline(seconds=slowest / 3, partial=True), OverSelection(factor=1.5)):
        devices, algorithm = Devices(fleet=SLOW, policy=policy, dropout=0.1), FedAvg()
        serial = run(population, devices)
        stacked = StackedPool(algorithm, population, 3)
        other = list(simulate(algorithm, population, stacked, devices=devices))
        assert [each.clock for each in other] == [each.clock for each in serial]
        assert [each.cohort for each in other] == [each.cohort for each in serial]
        records = [each.record() for each in serial[:2]]
        point = Checkpoint(round=2, state=serial[1].state, records=records)
        resumed = run(population, devices, resume=point)
        assert [(each.clock, each.digest) for each in resumed] == [
            (each.clock, each.digest) for each in serial[2:]
        ]


def test_a_record_has_a_clock_only_with_devices(population: Population) -> None:
    assert "clock" not in run(population, None)[0].record()
    assert run(population, Devices(fleet=SLOW))[0].record()["clock"]["total"] > 0
