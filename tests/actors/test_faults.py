"""Clients that raise, actors that die, memory that runs out: RayPool ends up where SerialPool does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, ObjectLostError, OutOfMemoryError

from actors import actor_group as crew_module
from actors import ray_pool as ray_pool_module
from actors.actor_errors import make_death_error
from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.faults import Chaos, Faults
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import CohortFailed, FedsimError, NodeLost, ObjectLost, OutOfMemory, PoolFailed
from tests.fedsim.engine.test_faults import RETRY, SKIP, Fragile, Moody
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything
from tests.open_actors import open_actors

pytestmark = pytest.mark.usefixtures("ray_cluster")


def serial(algorithm: Algorithm, population: Population, faults: Faults) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population, faults=faults)))


def same(a: list[RoundResult], b: list[RoundResult]) -> None:
    for name in ("digest", "memory_digest", "metrics", "traffic", "cohort", "failed"):
        assert [getattr(r, name) for r in a] == [getattr(r, name) for r in b], name


@pytest.fixture(scope="module")
def pair(ray_cluster: None) -> Iterator[ActorGroup]:
    """Two actors, which these tests kill and the actor_group replaces."""
    with open_actors(2) as actor_group:
        yield actor_group


POLICIES: list[tuple[Algorithm, Faults]] = [
    (Fragile(broken=(1, 6, 9), shapeless=(3,)), SKIP),
    (Fragile(broken=tuple(range(1, 10))), SKIP),
    (Moody(failures=2), RETRY),
    (Everything(), Faults(client_error="skip", chaos=Chaos(fail_client=0.4))),
]


@pytest.mark.parametrize(("algorithm", "faults"), POLICIES, ids=["some", "all-but-one", "retry", "chaos"])
def test_policies_do_not_depend_on_the_pool(
    algorithm: Algorithm, faults: Faults, actor_group: ActorGroup
) -> None:
    population = federation(rounds=3)
    expected = serial(algorithm, population, faults)
    results = list(
        simulate(algorithm, population, RayPool(algorithm, population, actor_group, faults=faults))
    )
    same(results, expected)
    for name in ("client_errors", "client_retries"):
        assert [r.engine.get(name) for r in results] == [r.engine.get(name) for r in expected]


@pytest.mark.slow
def test_a_cohort_that_failed_as_a_whole_is_named_across_processes(pair: ActorGroup) -> None:
    algorithm, population = Fragile(broken=tuple(range(10))), federation(rounds=1)
    pool = RayPool(algorithm, population, pair, faults=SKIP)
    with pytest.raises(CohortFailed, match="all 10 clients of round 1 failed; client 0"):
        list(simulate(algorithm, population, pool))


@pytest.mark.slow
def test_chaos_among_the_actors_changes_nothing_but_restarts(pair: ActorGroup) -> None:
    population, faults = (
        federation(rounds=3, cohort_size=5),
        Faults(max_retries=2, chaos=Chaos(kill_actor=0.3)),
    )
    pool = RayPool(Everything(), population, pair, faults=faults)
    results = list(simulate(Everything(), population, pool))
    same(results, serial(Everything(), population, faults))
    assert sum(result.engine["restarts"] for result in results) >= 1


@pytest.mark.weekly
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_thirty_rounds_of_chaos_give_the_thirty_digests_of_none(workers: int) -> None:
    population, faults = federation(rounds=30, cohort_size=4), Faults(chaos=Chaos(kill_actor=0.2))
    with open_actors(workers) as actor_group:
        pool = RayPool(Everything(), population, actor_group, faults=faults)
        results = list(simulate(Everything(), population, pool))
    same(results, serial(Everything(), population, Faults()))
    assert actor_group.restarts >= 10


@pytest.mark.slow
def test_all_actors_dying_at_once(pair: ActorGroup) -> None:
    population = federation(rounds=3)
    pool, before = RayPool(Everything(), population, pair), pair.restarts
    results = []
    for result in simulate(Everything(), population, pool):
        results.append(result)
        if result.round == 1:
            for member in pair.actor_infos:
                os.kill(member["pid"], signal.SIGKILL)
    same(results, serial(Everything(), population, Faults()))
    assert pair.restarts == before + 2


@dataclass(frozen=True, kw_only=True)
class Once(Everything):
    """Ends its process the first time that something happens.

    Attributes:
        when: "join" or "predict".
        mark: a file that says that it has happened.
        home: the process that is spared.
    """

    when: str
    mark: Path
    home: int

    def _die(self, now: str) -> None:
        if now == self.when and os.getpid() != self.home and not self.mark.exists():
            self.mark.write_text("")
            os._exit(1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._die("join")

    def predict(self, *args: Any) -> Any:
        self._die("predict")
        return super().predict(*args)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["join", "predict"])
def test_dying_while_joining_or_evaluating(when: str, pair: ActorGroup, tmp_path: Path) -> None:
    algorithm = Once(when=when, mark=tmp_path / "mark", home=os.getpid())
    population, before = federation(rounds=2), pair.restarts
    pool = RayPool(algorithm, population, pair)
    same(list(simulate(algorithm, population, pool)), serial(Everything(), population, Faults()))
    assert pair.restarts == before + 1


class Unwelcome(Everything):
    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_actors_of_a_node_that_dies_may_all_die_while_they_start(
    pair: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray counts the node as alive for some seconds more; each slot has its own count of deaths."""
    died = list[int]()

    def die_once(slot: int) -> None:
        if slot not in died:
            died.append(slot)
            raise ActorDiedError
        record_join(slot)

    record_join = pair.record_join
    monkeypatch.setattr(pair, "record_join", die_once)
    monkeypatch.setattr(pair, "replace_actor", lambda slot, error: pair._request_join(slot))
    RayPool(Everything(), federation(), pair, faults=Faults(max_retries=1))
    assert sorted(died) == [0, 1]


@pytest.mark.slow
def test_actors_that_never_join_end_the_run(pair: ActorGroup) -> None:
    with pytest.raises(PoolFailed, match="a worker died while it started 2 times"):
        RayPool(Unwelcome(), federation(), pair, faults=Faults(max_retries=1))


@pytest.mark.slow
def test_an_actor_that_joined_is_not_late_while_its_first_task_runs(
    pair: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    RayPool(Everything(), federation(), pair)
    pair._request_join(0)  # as `replace` does it, without the seconds of a new process
    ray.get(pair.actors[0].measure_memory.remote())
    monkeypatch.setattr(crew_module, "START_SECONDS", 0.0)
    pair.check_actors_alive()


def test_a_node_that_goes_while_actors_join_is_noticed(
    pair: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "actor_infos", [{}, {}])
    pair.check_actors_alive()
    monkeypatch.setattr(crew_module, "living_nodes", set)
    node = ray.get_runtime_context().get_node_id()
    with pytest.raises(NodeLost, match=rf"at an unknown address \({node}\)"):
        pair.check_actors_alive()


def test_a_lost_object_names_a_node_only_if_one_is_gone(
    pair: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, node = RayPool(Everything(), federation(), pair), pair.actor_infos[0]["node"]
    pool.restore_client_states({0: {"w": torch.zeros(1)}})

    def lose(references: Any, **options: Any) -> Any:
        raise ObjectLostError("ab12", "127.0.0.1", "stack")

    monkeypatch.setattr(ray_pool_module, "ray", SimpleNamespace(get=lose))
    with pytest.raises(ObjectLost, match="an object of the run was lost") as caught:
        pool.client_states()
    assert node not in str(caught.value)
    monkeypatch.setattr(crew_module, "living_nodes", set)
    with pytest.raises(NodeLost, match=node):
        pool.client_states()


def test_an_actor_that_does_not_start_is_not_waited_for_for_ever(
    pair: ActorGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "START_SECONDS", 0.0)
    monkeypatch.setattr(crew_module, "NODE_CHECK_SECONDS", 0.01)
    pair.replace_actor(0, RuntimeError("for this test"))
    with pytest.raises(PoolFailed, match="worker 0 did not start within 0 s"):
        RayPool(Everything(), federation(), pair)


def test_memory_that_ran_out_on_a_node_is_told_from_other_deaths() -> None:
    monitor = OutOfMemoryError(
        "Task was killed due to the node running low on memory.\nMemory on the node: 3 GB"
    )
    other = ActorDiedError()
    other.error_msg = "The process is killed by SIGKILL by OOM killer due to high memory usage, or: ..."
    found: FedsimError = make_death_error("the actor died", 4, monitor)
    assert isinstance(found, OutOfMemory)
    assert "4 times" in str(found)
    assert "fewer workers per node" in str(found)
    assert "3 GB" not in str(found)
    assert isinstance(make_death_error("the actor died", 4, other), PoolFailed)
    assert ray.is_initialized()


def alone(script: str) -> dict[str, Any]:
    """What a script of this folder prints, which has a Ray of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.actors.{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_two_nodes_give_the_same_digests_and_losing_one_is_named() -> None:
    found = alone("two_nodes")
    assert found["same"]
    assert found["nodes"] == found["restored_on"] == 2
    assert found["error"] == "NodeLost", found["message"]
    assert found["named"], found["message"]
    assert found["memories"] == "NodeLost"


@pytest.mark.slow
def test_a_node_whose_memory_runs_out_is_named() -> None:
    found = alone("little_memory")
    assert found["error"] == "OutOfMemory", found["message"]
    assert "their node ran out of memory" in found["message"]
    assert "fewer workers per node" in found["message"]
