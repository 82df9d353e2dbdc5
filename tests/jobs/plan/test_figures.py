"""What a plan makes of measurements that are given: seconds, bytes, memory and advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.client_actor import MemoryUsage
from actors.plan.forecast import Change, Outlook
from actors.plan.measured import Measured
from actors.plan.trial import without
from actors.resources import ClusterNode, Placement
from api.cli.commands.plan import format_plan
from fedsim.algorithms import FedAvg, FedGKD, LayerSchedule
from fedsim.core import Algorithm, Traffic
from fedsim.curriculum import ClientCurriculum
from fedsim.engine.initial_state import make_state_and_traffic
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import DoesNotFit
from jobs.plan.advice import advice
from jobs.plan.figures import check_room, drafted, with_figures, with_nodes, with_workers
from jobs.plan.plan import Plan
from jobs.run.placement import count_useful_workers
from jobs.settings import Settings
from jobs.spec.resolve import resolve_spec
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick
from tests.jobs.stored import spec

GIGABYTE = 10**9


def measured(**fields: Any) -> Measured:
    """Ten clients a round, 1 s each, on two workers; scoring takes 10 ms."""
    values: dict[str, Any] = {
        "device": "cpu",
        "workers": 2,
        "pieces": 10,
        "by_node": {"n": 2},
        "startup": 5.0,
        "survey": 0.0,
        "train": {2: 5.0, 10: 1.0},
        "overhead": 0.01,
        "longest": 1.0,
        "server": 0.01,
        "evaluation": 0.01,
        "traffic": Traffic(10, 20, {"params": 30}),
        "usage": MemoryUsage(GIGABYTE),
        "shared_bytes": GIGABYTE,
        "seconds": 10.0,
        "load": 0.0,
        "cores": 2,
    }
    return Measured(**values | fields)


def planned(
    found: Measured, nodes: list[ClusterNode], settings: Settings, **fields: Any
) -> tuple[Plan, list[str]]:
    wanted = spec(**fields)
    placement = Placement(found.workers, wanted.resources.cpus_per_worker, wanted.resources.gpus_per_worker)
    full = with_workers(drafted(wanted, resolve_spec(wanted, settings)), placement)
    full = with_figures(with_nodes(full, wanted, nodes, found), placement, found)
    return full, advice(full, wanted, nodes, found)


def test_whole_rounds_count_as_they_were_and_later_ones_as_the_last(settings: Settings) -> None:
    first = Traffic(100, 200, {"params": 300})
    found = measured(sent=[first, Traffic(10, 20, {"params": 30})])
    full, _ = planned(found, [ClusterNode("n", 2, 0, id="n")], settings, rounds=5)
    assert full.bytes is not None
    assert (full.bytes.total.down, full.bytes.total.up) == (140, 280)
    assert full.bytes.total.by_payload == {"params": 420}
    growing = replace(found, change=Change({"params": 10}, {"params": 25}))
    more, _ = planned(growing, [ClusterNode("n", 2, 0, id="n")], settings, rounds=5)
    assert more.bytes is not None
    assert (more.bytes.total.down, more.bytes.total.up) == (110 + 75, 220 + 150)
    assert more.bytes.total.by_payload == {"params": 330 + 225}
    new = replace(found, change=Change({"params": 10}, {"params": 10, "teacher": 7}))
    more, _ = planned(new, [ClusterNode("n", 2, 0, id="n")], settings, rounds=5)
    assert more.bytes is not None
    assert (more.bytes.total.down, more.bytes.total.up) == (110 + 3 * 17, 220 + 60)


FORESEEN: dict[str, Algorithm] = {
    "fedavg": FedAvg(),
    "vanilla": LayerSchedule(order="vanilla", times="even"),
    "anti": LayerSchedule(order="anti", times="even"),
    "fedgkd": FedGKD(),
    "kdia": quick("kdia"),
    "cd2_pfed": quick("cd2_pfed"),
    "clients": ClientCurriculum(base=FedAvg(), a=0.5),
    "ace_pfl": quick("ace_pfl"),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_one_round_foretells_what_a_run_sends(name: str, settings: Settings) -> None:
    """Only what is for single clients, such as ACE-pFL's predictions, is as it was in the round measured."""
    algorithm, population = FORESEEN[name], federation(layers=3, hidden=6, cohort_size=4, rounds=6)
    first, once = make_state_and_traffic(algorithm, population)
    pool = SerialPool(algorithm, population)
    results = list(simulate(algorithm, population, pool, personal="never"))
    one = results[0]
    outlook = Outlook(algorithm, population, first, first, one.state)
    found = measured(
        traffic=without(one.traffic, once),
        once=once,
        sent=[one.traffic],
        change=outlook.change(1, len(one.cohort)),
        whole_rounds=1,
    )
    full, _ = planned(found, [ClusterNode("n", 2, 0, id="n")], settings, rounds=6)
    assert full.bytes is not None
    total = full.bytes.total
    assert sum(total.by_payload.values()) == pytest.approx(total.down + total.up, abs=9)
    if name == "ace_pfl":
        assert (total.up, once.up > 0) == (sum(r.traffic.up for r in results), True)
        assert any("nothing went down" in note for note in full.notes)
        return
    assert total.down == pytest.approx(sum(r.traffic.down for r in results), rel=0.02)
    # What CD2-pFed sends up is already what the next round shares.
    near = 0.15 if name == "cd2_pfed" else 0.02
    assert total.up == pytest.approx(sum(r.traffic.up for r in results), rel=near)
    assert not any("nothing went" in note for note in full.notes)


def test_a_plan_says_where_traffic_is_an_upper_bound(settings: Settings) -> None:
    nodes = [ClusterNode("n", 2, 0, id="n")]
    assert any(
        "the most that it can be" in note
        for note in planned(measured(at_most=True), nodes, settings)[0].notes
    )
    assert not any("the most" in note for note in planned(measured(), nodes, settings)[0].notes)


def test_a_plan_says_how_many_clients_train_at_once(settings: Settings) -> None:
    full, _ = planned(measured(stack=(16, 64)), [ClusterNode("n", 2, 0, id="n")], settings)
    assert full.stack == 16
    assert "64 clients at once need more memory than an actor has: 16 train at once" in full.notes
    enough, _ = planned(measured(stack=(64, 64)), [ClusterNode("n", 2, 0, id="n")], settings)
    assert not any("at once" in note for note in enough.notes)


def test_what_the_server_trains_is_a_part_of_a_round(settings: Settings) -> None:
    full, _ = planned(measured(learn=60.0), [ClusterNode("n", 2, 0, id="n")], settings, rounds=10)
    assert full.seconds is not None
    assert full.seconds.round.learn == 60
    assert full.seconds.round.total == pytest.approx(5 + 60 + 0.01 + 0.01)
    assert full.seconds.total == pytest.approx(5 + 10 * full.seconds.round.total)
    [line] = [how for what, _, how in format_plan(full) if what == "a round"]
    assert "what it trains itself 60 s" in line


def test_memory_of_workers_that_were_not_measured_counts_too(settings: Settings) -> None:
    nodes = [ClusterNode("n", 64, 0, memory=6.5 * GIGABYTE, id="n")]
    full, _ = planned(measured(), nodes, settings)
    check_room(full)
    with pytest.raises(
        DoesNotFit, match="10 workers asked, 5 fit into the memory of the nodes: each takes 1 GB"
    ):
        check_room(full.model_copy(update={"workers": 10}))


@pytest.mark.parametrize(
    ("fields", "found", "nodes", "words"),
    [
        ({"resources__workers": 2}, {}, [ClusterNode("n", 16, 0)], "resources.workers: 10 has room here"),
        ({}, {}, [ClusterNode("n", 2, 0)], "room for 10 workers"),
        (
            {"resources__cpus_per_worker": 8},
            {},
            [ClusterNode("n", 16, 0)],
            "resources.cpus_per_worker: 1 makes room for 16 workers instead of 2",
        ),
        ({}, {"evaluation": 20.0}, [ClusterNode("n", 2, 0)], "evaluation.every: 5 saves"),
        (
            {},
            {"workers": 5, "train": {5: 5.0}, "stack": (8, 8), "pieces": 2},
            [ClusterNode("n", 5, 0)],
            "3 of 5 workers have nothing to do, because up to 8 of 10 clients train at once",
        ),
        (
            {},
            {"workers": 8, "train": {8: 5.0}, "stack": (8, 8), "pieces": 2, "device": "cuda"},
            [ClusterNode("n", 8, 0)],
            "resources.stack: off has something for all of them",
        ),
        (
            {},
            {"workers": 5, "train": {5: 5.0}, "stack": (8, 8), "pieces": 2, "device": "cuda"},
            [ClusterNode("n", 5, 0)],
            "resources.stack: 2 has something for all of them",
        ),
        (
            {},
            {"workers": 5, "train": {5: 5.0}, "stack": (8, 8), "pieces": 2},
            [ClusterNode("n", 5, 0)],
            "resources.stack: off has something for all of them",
        ),
        ({}, {"longest": 4.9}, [ClusterNode("n", 2, 0)], "local.steps in place of local.epochs"),
        ({}, {"overhead": 4.0}, [ClusterNode("n", 2, 0)], "the engine's own work"),
        (
            {"resources__gpus_per_worker": 0.5},
            {"usage": MemoryUsage(GIGABYTE, GIGABYTE, 40 * GIGABYTE)},
            [ClusterNode("n", 16, 1)],
            "resources.gpus_per_worker: 0.03 makes room for 16 workers instead of 2",
        ),
    ],
)
def test_advice_where_the_numbers_say_so(
    settings: Settings, fields: dict[str, Any], found: dict[str, Any], nodes: list[ClusterNode], words: str
) -> None:
    lines = planned(measured(**found), nodes, settings, **fields)[1]
    assert any(words in line for line in lines), lines


@pytest.mark.parametrize(
    ("models", "most"),
    [
        ({"name": "mlp"}, 1),
        ({"name": "resnet9", "norm": "batch"}, 10),
        ([{"name": "logistic"}, {"name": "mlp"}, {"name": "logistic"}, {"name": "mlp"}], 4),
    ],
    ids=["one stack", "no stack", "a stack of each"],
)
def test_workers_are_as_many_as_a_round_has_stacks_or_clients(
    settings: Settings, models: Any, most: int
) -> None:
    wanted = spec(resources__stack=10, model=models)
    assert count_useful_workers(resolve_spec(wanted, settings)) == most


def test_clients_that_cannot_be_stacked_leave_no_worker_idle(settings: Settings) -> None:
    found = measured(workers=10, train={10: 1.0}, longest=0.1, stack=(10, 10), pieces=10)
    assert planned(found, [ClusterNode("n", 10, 0)], settings)[1] == []


def test_no_advice_where_nothing_would_help(settings: Settings) -> None:
    found = measured(workers=10, train={10: 1.0}, longest=0.1)
    assert planned(found, [ClusterNode("n", 10, 0)], settings)[1] == []
