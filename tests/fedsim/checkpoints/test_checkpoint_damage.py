"""Checkpoints that are damaged, of another run, or cannot be written: left out or refused, by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.engine.simulation import RoundResult
from fedsim.errors import CheckpointError
from tests.fedsim.altered import alter_a_memory, reseal
from tests.fedsim.federations import federation
from tests.fedsim.kept import Wrapped, run
from tests.fedsim.methods import Everything


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, list[RoundResult], Any]:
    """A folder with checkpoints of rounds 4 and 6, their results, and a function that makes a first state."""
    population = federation(cohort_size=4, rounds=6)
    results, _ = run(Everything(), population, tmp_path)
    return tmp_path, results, lambda: Everything().init_server_state(population.context(0))


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
    folder, results, make_template = two
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
    found = kept.load(make_template, warnings.append)
    assert found is not None
    assert (found.round, found.digest) == (4, results[3].digest)
    if kind == "manifest" and damage == "gone":
        assert warnings == []
    else:
        assert victim.name in warnings[0]
    assert [n for n in kept.folder.list_files() if n.startswith("manifest")] == ["manifest-000004.json"]


def test_client_states_that_are_not_those_that_were_written_are_left_out(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    folder, results, make_template = two
    kept, warnings = Checkpoints(str(folder), {"algorithm": "it"}), list[str]()
    newest = kept.load(make_template)
    assert newest is not None
    assert newest.memory_digest == results[5].memory_digest is not None
    alter_a_memory(folder, said=False)
    found = kept.load(make_template, warnings.append)
    assert found is not None
    assert (found.round, found.memory_digest) == (4, results[3].memory_digest)
    assert "the digest of the client states is not the one that was written" in warnings[0]


def test_a_checkpoint_of_before_it_said_its_client_states_digest_is_read(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    folder, _, make_template = two
    reseal(folder / "manifest-000006.json", lambda content: content.pop("memory_digest"))
    found = Checkpoints(str(folder), {"algorithm": "it"}).load(make_template)
    assert found is not None
    assert (found.round, found.memory_digest) == (6, None)


def test_without_any_whole_checkpoint_it_says_so(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder, _, make_template = two
    for manifest in folder.glob("manifest-*.json"):
        manifest.write_text("{")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is whole: .*manifest-000006\.json is dam"
    ):
        Checkpoints(str(folder)).load(make_template)
    assert Checkpoints(str(folder / "nothing")).load(make_template) is None


def test_another_experiment_is_refused(two: tuple[Path, list[RoundResult], Any]) -> None:
    folder, _, make_template = two
    other = Checkpoints(str(folder), {"algorithm": "other", "local": {"lr": 1}})
    words = r"manifest-000006\.json is of another experiment: algorithm was 'it', is 'other'; local was None"
    with pytest.raises(CheckpointError, match=words):
        other.check_newest()
    with pytest.raises(CheckpointError, match=words):
        other.load(make_template)
    with pytest.raises(CheckpointError, match="a state with"):
        Checkpoints(str(folder), {"algorithm": "it"}).load(
            lambda: Wrapped(params={}, base=None, scores=None, odd=None)
        )


def test_the_number_of_rounds_counts_where_the_experiment_names_it(
    two: tuple[Path, list[RoundResult], Any],
) -> None:
    # These checkpoints, like those of before it counted, say it beside the experiment.
    Checkpoints(str(two[0]), {"algorithm": "it", "rounds": 6}).check_newest()
    with pytest.raises(CheckpointError, match="rounds was 6, is 18") as refused:
        Checkpoints(str(two[0]), {"algorithm": "it", "rounds": 18}).check_newest()
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
    folder, results, make_template = two
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    population = federation(cohort_size=4, rounds=8)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written .*No space left on device"):
        run(Everything(), population, folder, resume=True)
    with pytest.raises(CheckpointError, match="No space left"):
        Checkpoints(str(folder)).check_writable()
    monkeypatch.undo()
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before
    found = Checkpoints(str(folder), {"algorithm": "it"}).load(make_template)
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
        Checkpoints(url).check_writable()
    assert "secret" not in str(caught.value)
