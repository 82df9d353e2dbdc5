"""Checkpoints: what is read is what was written, and a run that goes on is the run that never ended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from fedsim import tree
from fedsim.algorithms import ALGORITHMS, FedAvg, FedCL
from fedsim.checkpoint import Checkpoints
from fedsim.core import Algorithm, ServerState
from fedsim.digest import digest
from fedsim.errors import CheckpointError
from fedsim.history import FILE_BYTES, Memories, Records
from fedsim.packing import pack, unpack
from fedsim.pools import SerialPool
from fedsim.population import Population
from fedsim.secret_urls import secrets_in, without_secrets
from fedsim.simulation import RoundResult, simulate
from fedsim.storage import Folder
from tests.fedsim.altered import alter_a_memory, reseal
from tests.fedsim.federations import federation
from tests.fedsim.methods import FREEZING, quick
from tests.fedsim.test_engine import Everything


def method(name: str) -> Algorithm:
    return Everything() if name == "everything" else quick(name)


def run(
    algorithm: Algorithm,
    population: Population,
    folder: Path | str,
    *,
    every: int = 2,
    rounds: int | None = None,
    resume: bool = False,
) -> tuple[list[RoundResult], SerialPool]:
    """A run that is checkpointed, or one that goes on."""
    pool, kept = SerialPool(algorithm, population), Checkpoints(str(folder), {"algorithm": "it"})
    checkpoint = kept.load(algorithm.init(population.context(0))) if resume else None
    results = []
    for result in simulate(algorithm, population, pool, rounds=rounds, resume=checkpoint):
        results.append(result)
        kept.note(result)
        if result.round % every == 0:
            kept.save(result, pool, population.rounds)
    return results, pool


def same_memories(a: SerialPool, b: SerialPool) -> None:
    assert a.memories().keys() == b.memories().keys()
    for client, memory in a.memories().items():
        assert digest(memory) == digest(b.memories()[client])


@pytest.mark.parametrize("name", [*ALGORITHMS, "everything"])
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


def test_a_checkpoint_has_every_record(tmp_path: Path) -> None:
    population = federation([8, 8], rounds=13)
    results, _ = run(FedAvg(), population, tmp_path, every=3)
    found = Checkpoints(str(tmp_path), {"algorithm": "it"}).load(FedAvg().init(population.context(0)))
    assert found is not None
    assert found.round == 12
    assert found.digest == results[11].digest
    assert list(found.records) == [json.loads(json.dumps(r.record())) for r in results[:12]]


@dataclass(frozen=True, kw_only=True)
class Wrapped(ServerState):
    base: Any
    scores: Any
    odd: Any


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
def two(tmp_path: Path) -> tuple[Path, list[RoundResult], Any]:
    """A folder with checkpoints of rounds 4 and 6."""
    population = federation(cohort_size=4, rounds=6)
    results, _ = run(Everything(), population, tmp_path)
    return tmp_path, results, Everything().init(population.context(0))


def test_the_last_two_are_kept_and_nothing_else(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder = two[0]
    manifests = sorted(folder.glob("manifest-*.json"))
    assert [m.name for m in manifests] == ["manifest-000004.json", "manifest-000006.json"]
    needed = set()
    for manifest in manifests:
        content = json.loads(manifest.read_text())
        entries = [content["state"], *content["memories"], *content["records"]]
        needed |= {manifest.name, *(entry["name"] for entry in entries)}
    assert {f.name for f in folder.iterdir()} == needed


@pytest.mark.parametrize("kind", ["manifest", "state", "memories", "records"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_left_out(
    two: tuple[Path, list[RoundResult], Any], kind: str, damage: str
) -> None:
    folder, results, template = two
    content = json.loads((folder / "manifest-000006.json").read_text())
    before = (folder / "manifest-000004.json").read_text()
    names = {"manifest": ["manifest-000006.json"], "state": [content["state"]["name"]]}
    names |= {part: [entry["name"] for entry in content[part]] for part in ("memories", "records")}
    victim = folder / next(name for name in names[kind] if name not in before)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(data if damage == "flip" else data[:-3])
    warnings: list[str] = []
    kept = Checkpoints(str(folder), {"algorithm": "it"})
    found = kept.load(template, warnings.append)
    assert found is not None
    assert (found.round, found.digest) == (4, results[3].digest)
    if kind == "manifest" and damage == "gone":
        assert warnings == []
    else:
        assert victim.name in warnings[0]
    assert [n for n in kept.folder.list() if n.startswith("manifest")] == ["manifest-000004.json"]


def test_memories_that_are_not_those_that_were_written_are_left_out(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    folder, results, template = two
    kept, warnings = Checkpoints(str(folder), {"algorithm": "it"}), list[str]()
    newest = kept.load(template)
    assert newest is not None
    assert newest.memory_digest == results[5].memory_digest is not None
    alter_a_memory(folder, said=False)
    found = kept.load(template, warnings.append)
    assert found is not None
    assert (found.round, found.memory_digest) == (4, results[3].memory_digest)
    assert "the memories' digest is not the one that was written" in warnings[0]


def test_a_checkpoint_of_before_it_said_its_memories_digest_is_read(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    folder, _, template = two
    reseal(folder / "manifest-000006.json", lambda content: content.pop("memory_digest"))
    found = Checkpoints(str(folder), {"algorithm": "it"}).load(template)
    assert found is not None
    assert (found.round, found.memory_digest) == (6, None)


def test_without_any_whole_checkpoint_it_says_so(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder, _, template = two
    for manifest in folder.glob("manifest-*.json"):
        manifest.write_text("{")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is whole: .*manifest-000006\.json is dam"
    ):
        Checkpoints(str(folder)).load(template)
    assert Checkpoints(str(folder / "nothing")).load(template) is None


def test_another_experiment_is_refused(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder, _, template = two
    other = Checkpoints(str(folder), {"algorithm": "other", "local": {"lr": 1}})
    words = r"manifest-000006\.json is of another experiment: algorithm was 'it', is 'other'; local was None"
    with pytest.raises(CheckpointError, match=words):
        other.check()
    with pytest.raises(CheckpointError, match=words):
        other.load(template)
    with pytest.raises(CheckpointError, match="a state with"):
        Checkpoints(str(folder), {"algorithm": "it"}).load(
            Wrapped(params={}, base=None, scores=None, odd=None)
        )


def test_the_number_of_rounds_counts_where_the_experiment_names_it(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    # These checkpoints, like those of before it counted, say it beside the experiment.
    Checkpoints(str(two[0]), {"algorithm": "it", "rounds": 6}).check()
    with pytest.raises(CheckpointError, match="rounds was 6, is 18") as refused:
        Checkpoints(str(two[0]), {"algorithm": "it", "rounds": 18}).check()
    assert "more rounds" not in str(refused.value.hint)


def test_clear_removes_checkpoints_and_nothing_else(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder = two[0]
    (folder / "notes.txt").write_text("mine")
    (folder / ".state-000006-0123abcd.safetensors.89abcdef").write_text("left by a killed process")
    Checkpoints(str(folder)).clear()
    assert [f.name for f in folder.iterdir()] == ["notes.txt"]


def test_a_full_disk_fails_clearly_and_leaves_what_was_there(
    two: tuple[Path, list[RoundResult], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, results, template = two
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    population = federation(cohort_size=4, rounds=8)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written .*No space left on device"):
        run(Everything(), population, folder, resume=True)
    with pytest.raises(CheckpointError, match="No space left"):
        Checkpoints(str(folder)).probe()
    monkeypatch.undo()
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before
    found = Checkpoints(str(folder), {"algorithm": "it"}).load(template)
    assert found is not None
    assert found.digest == results[5].digest


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://bucket/x", r"nosuch://bucket/x cannot be used: ValueError"),
        ("/proc/nothing/here", r"/proc/nothing/here cannot be written .*"),
        ("nosuch://bucket/x?token=secret", r"nosuch://bucket/x\?token=\*\*\* cannot be used"),
        ("ftp://me:secret@127.0.0.1:9/x", r"ftp://\*\*\*@127\.0\.0\.1:9/x cannot be"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(url: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        Checkpoints(url).probe()
    assert "secret" not in str(caught.value)


@pytest.fixture
def elsewhere() -> Iterator[str]:
    yield "memory://checkpoints/of/a/run"
    fsspec.filesystem("memory").rm("/checkpoints", recursive=True)


def test_checkpoints_on_another_file_system(elsewhere: str) -> None:
    population = federation(cohort_size=4, rounds=4)
    Checkpoints(elsewhere).probe()
    expected, reference = run(Everything(), population, elsewhere)
    results, pool = run(Everything(), population, elsewhere, resume=True)
    assert results == []
    same_memories(pool, reference)
    assert len(Folder(elsewhere).list()) >= 6
    Folder(elsewhere).clear()
    assert Folder(elsewhere).list() == []
    assert expected[-1].round == 4


class Notebook:
    """A pool's memories, all of one size, with how many were ever fetched at once."""

    def __init__(self, numbers: int) -> None:
        self.numbers, self.versions, self.most = numbers, dict[int, int](), 0

    def change(self, clients: list[int]) -> list[int]:
        for client in clients:
            self.versions[client] = self.versions.get(client, 0) + 1
        return clients

    def fetch(self, clients: Any) -> dict[int, tree.Tree]:
        self.most = max(self.most, len(clients))
        return {c: {"v": torch.full((self.numbers,), float(self.versions[c]))} for c in clients}


def test_only_what_changed_is_written_and_files_do_not_pile_up(tmp_path: Path) -> None:
    notebook, memories = Notebook(numbers=10), Memories(Folder(str(tmp_path)))
    memories.save(1, notebook.change(list(range(200))), notebook.fetch)
    before = {f.name for f in tmp_path.iterdir()}
    memories.save(2, notebook.change([3, 5]), notebook.fetch)
    (new,) = {f.name for f in tmp_path.iterdir()} - before
    assert unpack((tmp_path / new).read_bytes()).keys() == {3, 5}
    drawn = np.random.default_rng(0)
    for number in range(3, 60):
        memories.save(number, notebook.change(drawn.choice(200, 20, replace=False).tolist()), notebook.fetch)
    entries = memories.entries()
    assert sorted(client for entry in entries for client in entry["clients"]) == list(range(200))
    assert sum(entry["entries"] for entry in entries) <= 400
    loaded = {c: m for part in Memories(Folder(str(tmp_path)), entries) for c, m in part.items()}
    assert {c: float(m["v"][0]) for c, m in loaded.items()} == notebook.versions


def test_large_memories_go_into_several_files(tmp_path: Path) -> None:
    notebook, memories = Notebook(numbers=FILE_BYTES // 4 // 8), Memories(Folder(str(tmp_path)))
    memories.save(1, notebook.change(list(range(40))), notebook.fetch)
    assert [entry["entries"] for entry in memories.entries()] == [8, 8, 8, 8, 8]
    assert notebook.most == 16


def test_records_of_many_rounds_are_few_files(tmp_path: Path) -> None:
    records = Records(Folder(str(tmp_path)))
    for number in range(1, 301):
        records.save(number, [{"round": number, "nan": math.nan}])
    assert len(records.entries()) <= 9
    again = Records(Folder(str(tmp_path)), records.entries())
    assert [record["round"] for record in again] == list(range(1, 301))


def test_urls_are_shown_without_secrets() -> None:
    assert without_secrets("s3://key:secret@host/x") == "s3://***@host/x"
    assert without_secrets("s3://key:sec@ret@host/x") == "s3://***@host/x"
    assert without_secrets("/home/a@b") == "/home/a@b"
    url = "s3://bucket/x?region=eu&secret=a%20b&access_key=me"
    assert without_secrets(url) == "s3://bucket/x?region=eu&secret=***&access_key=***"
    assert secrets_in(url) == {"a%20b", "a b", "me"}
    assert secrets_in("postgresql://host/db?user=u&password=hush&keepalives=1") == {"hush"}
