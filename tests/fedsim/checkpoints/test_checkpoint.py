"""Checkpoints: what is read is what was written, and a run that goes on is the run that never ended."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, ClusteredFedAvg, FedAvg, FedAvgM, FedCL
from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.base.secret_urls import find_secrets, remove_secrets
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.checkpoints.experiment_run import CheckpointPolicy, ExperimentRun, Status
from fedsim.checkpoints.serialization import pack, unpack
from fedsim.checkpoints.storage import Folder
from fedsim.checkpoints.stored_files import FILE_BYTES, StoredClientStates, StoredRecords
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous, FedAsync, FedBuff
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Lognormal
from fedsim.core import Algorithm, Context, LocalTraining, RunSettings, ServerState
from fedsim.engine import initial_state
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.errors import CheckpointError
from tests.fedsim.federations import federation
from tests.fedsim.kept import Wrapped, method, run, same_memories
from tests.fedsim.methods import FREEZING, Everything, slow_unless_varied


@pytest.mark.parametrize("name", slow_unless_varied([*ALGORITHMS, "everything"]))
def test_train_is_save_load_and_train(name: str, tmp_path: Path) -> None:
    population = federation(cohort_size=4, rounds=6)
    expected, reference = run(method(name), population, tmp_path / "whole")
    run(method(name), population, tmp_path / "parts", rounds=3)
    results, pool = run(method(name), population, tmp_path / "parts", resume=True)
    assert [r.round for r in results] == [3, 4, 5, 6]
    assert [r.digest for r in results] == [r.digest for r in expected[2:]]
    assert [r.metrics for r in results] == [r.metrics for r in expected[2:]]
    assert [r.memory_digest for r in results] == [r.memory_digest for r in expected[2:]]
    same_memories(pool, reference)
    again, pool = run(method(name), population, tmp_path / "parts", resume=True)
    assert again == []
    same_memories(pool, reference)


class Costly(FedAvg):
    """Counts how often its first state is made, which may take a label census of all clients."""

    made: ClassVar[list[Context]] = []

    def init_server_state(self, ctx: Context) -> ServerState:
        self.made.append(ctx)
        return super().init_server_state(ctx)


class SerialRun(ExperimentRun):
    """A run in this process."""

    server_device = "cpu"

    def open_pool(self, population: Population) -> Generator[Status, None, SerialPool]:
        yield Status("opening")
        return SerialPool(self.experiment.algorithm, population)


def small_experiment(algorithm: Algorithm, rounds: int) -> Experiment:
    return Experiment(
        algorithm=algorithm,
        settings=RunSettings(rounds=rounds, cohort_size=2, local=LocalTraining(epochs=1)),
        num_clients=2,
        dataset=("synthetic", {"examples": 40, "test_examples": 8, "dims": 4}),
        partition=("iid", {}),
        models=(("logistic", {}),),
    )


def test_a_new_run_makes_its_first_state_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costly, "made", [])
    list(SerialRun(small_experiment(Costly(), 1), CheckpointPolicy(str(tmp_path), every=1)).run())
    assert len(Costly.made) == 1


def test_a_run_that_goes_on_asks_for_no_census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes minutes for a million clients, and the checkpoint has its answers."""
    policy = CheckpointPolicy(str(tmp_path), every=1)
    list(SerialRun(small_experiment(ClusteredFedAvg(), 1), policy).run())
    asked = Mock(side_effect=initial_state.answer_census)
    monkeypatch.setattr(initial_state, "answer_census", asked)
    results = list(SerialRun(small_experiment(ClusteredFedAvg(), 2), policy).run())
    assert getattr(results[-1], "round", None) == 2
    asked.assert_not_called()
    list(SerialRun(small_experiment(ClusteredFedAvg(), 2), replace(policy, resume=False)).run())
    asked.assert_called_once()


@pytest.mark.parametrize("policy", [FedBuff(buffer=2), FedAsync()])
def test_clients_in_flight_go_on(policy: Asynchronous, tmp_path: Path) -> None:
    population, algorithm = federation(cohort_size=5, rounds=12), FedAvgM()
    fleet = Lognormal(gflops=2e-3, up_mbps=0.2, spread=1.0)
    options: Any = {"devices": Devices(fleet=fleet, policy=policy, dropout=0.1), "every": 3}
    expected, _ = run(algorithm, population, tmp_path / "whole", **options)
    run(algorithm, population, tmp_path / "parts", rounds=7, **options)
    results, _ = run(algorithm, population, tmp_path / "parts", resume=True, **options)
    assert [(r.round, r.cohort, r.digest, r.clock) for r in results] == [
        (r.round, r.cohort, r.digest, r.clock) for r in expected[6:]
    ]
    assert any(r.clock and r.clock.max_staleness for r in results)
    files = [file.name for file in (tmp_path / "parts").iterdir() if file.name.startswith("flights-")]
    assert len(files) == 2
    for file in files:
        (tmp_path / "parts" / file).write_bytes(b"")
    with pytest.raises(CheckpointError, match="flights-"):
        run(algorithm, population, tmp_path / "parts", resume=True, **options)


def test_who_is_frozen_stays_so_when_a_run_goes_on(tmp_path: Path) -> None:
    method, population = FedCL(**FREEZING), federation(cohort_size=6, rounds=5)
    expected, _ = run(method, population, tmp_path / "whole", every=3)
    run(method, population, tmp_path / "parts", every=3, rounds=3)
    frozen = expected[2].state.standing.frozen
    assert frozen.sum() == 6
    results, _ = run(method, population, tmp_path / "parts", resume=True)
    assert not frozen[list(results[0].cohort)].any()
    assert [(r.round, r.cohort, r.digest) for r in results] == [
        (r.round, r.cohort, r.digest) for r in expected[3:]
    ]


def test_clusters_that_split_stay_so_when_a_run_goes_on(tmp_path: Path) -> None:
    algorithm, population = method("cfl"), federation(rounds=4)  # all clients come, or no cluster splits
    expected, _ = run(algorithm, population, tmp_path / "whole")
    assert [len(r.method["clusters"]) for r in expected[:3]] == [1, 2, 3]
    run(algorithm, population, tmp_path / "parts", rounds=2)
    results, _ = run(algorithm, population, tmp_path / "parts", resume=True)
    assert [(r.round, r.method, r.digest) for r in results] == [
        (r.round, r.method, r.digest) for r in expected[2:]
    ]


def test_a_checkpoint_has_every_record(tmp_path: Path) -> None:
    population = federation([8, 8], rounds=13)
    results, _ = run(FedAvg(), population, tmp_path, every=3)
    found = Checkpoints(str(tmp_path), {"algorithm": "it"}).load(
        lambda: FedAvg().init_server_state(population.context(0))
    )
    assert found is not None
    assert found.round == 12
    assert found.digest == results[11].digest
    assert list(found.records) == [json.loads(json.dumps(r.record())) for r in results[:12]]


def odd_values() -> Any:
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool]
    kinds += [torch.int8, torch.uint8, torch.int64, torch.uint16, torch.float8_e4m3fn]
    drawn = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    shared = torch.arange(10.0)
    return {
        "kinds": {str(kind): drawn.to(kind) for kind in kinds},
        "bits": torch.tensor([math.nan, -0.0, math.inf, 5e-324], dtype=torch.float64),
        "shapes": [torch.zeros(()), torch.zeros(0, 3), drawn.t(), shared[2:5], shared[3:], shared],
        "numbers": (1, 2**80, -0.0, 0.1, math.inf, -math.inf, True, None, "text \x00 é", np.float64(0.1)),
        5: {"empty": {}, "list": [], "tuple": ()},
        "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(0.1) * np.ones(())],
    }


def test_states_come_back_bit_for_bit() -> None:
    inner = ServerState(params={"w": torch.ones(2)})
    state = Wrapped(params={"0": {"w": torch.rand(3)}}, base=[{"of": inner}], scores=None, odd=odd_values())
    found = unpack(pack(state), state)
    assert digest(found) == digest(state)
    assert type(found) is Wrapped
    assert type(found.base[0]["of"]) is ServerState
    assert type(found.odd["numbers"]) is tuple
    assert list(found.odd) == list(state.odd)
    for kind, value in state.odd["kinds"].items():
        assert found.odd["kinds"][kind].dtype == value.dtype
    assert digest(unpack(pack(math.nan))) == digest(math.nan)


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(TypeError, match="cannot hold set"):
        pack({"a": {1, 2}})
    with pytest.raises(TypeError, match=r"the key 1\.5"):
        pack({1.5: 2})
    with pytest.raises(ValueError, match=r"a state with \['params'\], and Wrapped has"):
        unpack(pack(ServerState(params={})), Wrapped(params={}, base=1, scores=1, odd=1))
    for damaged in (b"", b"\xff" * 100, pack({"a": torch.ones(3)})[:-1]):
        with pytest.raises(ValueError, match="is not what fedsim writes"):
            unpack(damaged)


@pytest.fixture
def elsewhere() -> Iterator[str]:
    yield "memory://checkpoints/of/a/run"
    fsspec.filesystem("memory").rm("/checkpoints", recursive=True)


def test_checkpoints_on_another_file_system(elsewhere: str) -> None:
    population = federation(cohort_size=4, rounds=4)
    Checkpoints(elsewhere).check_writable()
    expected, reference = run(Everything(), population, elsewhere)
    results, pool = run(Everything(), population, elsewhere, resume=True)
    assert results == []
    same_memories(pool, reference)
    assert len(Folder(elsewhere).list_files()) >= 6
    Folder(elsewhere).clear()
    assert Folder(elsewhere).list_files() == []
    assert expected[-1].round == 4


class Notebook:
    """A pool's memories, all of one size, with how many were fetched at once each time."""

    def __init__(self, numbers: int) -> None:
        self.numbers, self.versions, self.fetched = numbers, dict[int, int](), list[int]()

    def change(self, clients: list[int]) -> list[int]:
        for client in clients:
            self.versions[client] = self.versions.get(client, 0) + 1
        return clients

    def fetch(self, clients: Any) -> dict[int, tree.Tree]:
        self.fetched.append(len(clients))
        return {c: {"v": torch.full((self.numbers,), float(self.versions[c]))} for c in clients}


def test_only_what_changed_is_written_and_files_do_not_pile_up(tmp_path: Path) -> None:
    notebook, memories = Notebook(numbers=10), StoredClientStates(Folder(str(tmp_path)))
    memories.save(1, notebook.change(list(range(200))), notebook.fetch)
    before = {f.name for f in tmp_path.iterdir()}
    memories.save(2, notebook.change([3, 5]), notebook.fetch)
    (new,) = {f.name for f in tmp_path.iterdir()} - before
    assert unpack((tmp_path / new).read_bytes()).keys() == {3, 5}
    drawn = np.random.default_rng(0)
    for number in range(3, 60):
        memories.save(number, notebook.change(drawn.choice(200, 20, replace=False).tolist()), notebook.fetch)
    entries = memories.list_entries()
    assert sorted(client for entry in entries for client in entry["clients"]) == list(range(200))
    assert sum(entry["entries"] for entry in entries) <= 400
    loaded = {c: m for part in StoredClientStates(Folder(str(tmp_path)), entries) for c, m in part.items()}
    assert {c: float(m["v"][0]) for c, m in loaded.items()} == notebook.versions


def test_large_client_states_go_into_several_files(tmp_path: Path) -> None:
    notebook, memories = Notebook(numbers=FILE_BYTES // 4 // 8), StoredClientStates(Folder(str(tmp_path)))
    memories.save(1, notebook.change(list(range(40))), notebook.fetch)
    assert [entry["entries"] for entry in memories.list_entries()] == [8, 8, 8, 8, 8]
    assert notebook.fetched == [1, 2, 4, 8, 8, 8, 8, 1]


class Uneven(Notebook):
    """A pool of two architectures, every other client's a hundredth of a file and of a whole one."""

    def fetch(self, clients: Any) -> dict[int, tree.Tree]:
        super().fetch(clients)
        return {c: {"v": torch.zeros(FILE_BYTES // 4 // (1 if c % 2 else 100))} for c in clients if c}


def test_client_states_are_never_fetched_many_at_once_before_it_is_known_what_they_weigh(
    tmp_path: Path,
) -> None:
    """The first client keeps nothing, the next one fills a file, and so on."""
    notebook, memories = Uneven(numbers=1), StoredClientStates(Folder(str(tmp_path)))
    memories.save(1, notebook.change(list(range(8))), notebook.fetch)
    assert notebook.fetched == [1, 2, 1, 1, 1, 1, 1]
    assert sorted(c for entry in memories.list_entries() for c in entry["clients"]) == [1, 2, 3, 4, 5, 6, 7]


def test_records_of_many_rounds_are_few_files(tmp_path: Path) -> None:
    records = StoredRecords(Folder(str(tmp_path)))
    for number in range(1, 301):
        records.save(number, [{"round": number, "nan": math.nan}])
    assert len(records.list_entries()) <= 9
    again = StoredRecords(Folder(str(tmp_path)), records.list_entries())
    assert [record["round"] for record in again] == list(range(1, 301))


def test_urls_are_shown_without_secrets() -> None:
    assert remove_secrets("s3://key:secret@host/x") == "s3://***@host/x"
    assert remove_secrets("s3://key:sec@ret@host/x") == "s3://***@host/x"
    assert remove_secrets("/home/a@b") == "/home/a@b"
    url = "s3://bucket/x?region=eu&secret=a%20b&access_key=me"
    assert remove_secrets(url) == "s3://bucket/x?region=eu&secret=***&access_key=***"
    assert find_secrets(url) == {"a%20b", "a b", "me"}
    assert find_secrets("postgresql://host/db?user=u&password=hush&keepalives=1") == {"hush"}
