"""The folder of a run: what it refuses, what it has while the run runs, and how to continue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from api.cli.run_folder import RunFolder
from fedsim.errors import SettingsError
from jobs.file_locks import lock_folder
from jobs.spec import parse_spec
from tests.api.service import Fedsim, a_round

SPEC = parse_spec({"algorithm": "fedavg", "rounds": 5})


def begun(path: Path, rounds: int = 2) -> RunFolder:
    """A folder with the first rounds of a run, without a checkpoint."""
    folder = RunFolder(path, SPEC, resume=False, overwrite=False)
    for number in range(1, rounds + 1):
        folder.add_round(a_round(number))
    return folder


def test_it_has_the_spec_and_the_rounds_while_the_run_runs(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert yaml.safe_load((tmp_path / "spec.yaml").read_text())["rounds"] == 5
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert "no checkpoint yet" in folder.describe_rest()


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_a_second_run_in_a_folder_is_refused_while_the_first_works(
    fedsim: Fedsim, tmp_path: Path, option: str
) -> None:
    begun(tmp_path)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    with lock_folder(tmp_path, "run"):
        done = fedsim("run", "demo", "--out", str(tmp_path), option)
    assert done.code == 2
    assert f"another run works in {tmp_path}" in done.err
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


def test_a_finished_run_says_how_to_go_on(tmp_path: Path) -> None:
    folder = begun(tmp_path, rounds=5)
    assert folder.describe_finished() == ""
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    assert folder.describe_finished() == ""  # without a checkpoint it begins anew


def test_another_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    begun(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SettingsError, match=r"has a run .*--overwrite replaces it"):
        RunFolder(tmp_path, SPEC, resume=False, overwrite=False)
    other = parse_spec({"algorithm": "fedavg", "rounds": 5, "seed": 9})
    with pytest.raises(SettingsError, match=r"of another experiment: seed was 0"):
        RunFolder(tmp_path, other, resume=True, overwrite=False)
    RunFolder(tmp_path, other, resume=False, overwrite=True)  # a spec with errors would end here
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_id_of_trackers_is_that_of_the_run(tmp_path: Path) -> None:
    """A run that is refused keeps the id of the run before it; one that replaces it has its own, or none."""
    first = RunFolder(tmp_path, SPEC, resume=False, overwrite=False)
    known = first.make_tracking_id()
    first.add_round(a_round(1))
    RunFolder(tmp_path, SPEC, resume=False, overwrite=True).make_tracking_id()
    assert RunFolder(tmp_path, SPEC, resume=True, overwrite=False).make_tracking_id() == known
    RunFolder(tmp_path, SPEC, resume=False, overwrite=True).begin_attempt()
    assert RunFolder(tmp_path, SPEC, resume=True, overwrite=False).make_tracking_id() != known


def test_a_run_that_is_refused_later_keeps_its_rounds(tmp_path: Path) -> None:
    """A checkpoint is compared when the attempt has begun, as with the hash of initial weights."""
    begun(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    folder = RunFolder(tmp_path, SPEC, resume=True, overwrite=False)
    folder.begin_attempt()
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    folder.add_round(a_round(1))
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1


def test_a_finished_run_of_another_experiment_is_refused(tmp_path: Path) -> None:
    """With checkpoints too; the hash of initial weights is not known yet."""
    begun(tmp_path, rounds=5)
    (tmp_path / "checkpoints").mkdir()
    other = parse_spec({"algorithm": "fedavg", "rounds": 5, "local": {"lr": 0.5}})
    with pytest.raises(SettingsError, match=r"of another experiment: local.lr was"):
        RunFolder(tmp_path, other, resume=True, overwrite=False)
    init = {"file": "w.pt", "sha256": "0" * 64}
    hashed, plain = (
        parse_spec({"algorithm": "fedavg", "rounds": 5, "model": {"name": "mlp", "init": each}})
        for each in (init, "w.pt")
    )
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(hashed.model_dump(mode="json")))
    RunFolder(tmp_path, plain, resume=True, overwrite=False)


def test_a_run_is_replaced_or_continued_on_demand(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    RunFolder(tmp_path, SPEC, resume=True, overwrite=False).begin()
    assert ((tmp_path / "result.json").exists(), (tmp_path / "rounds.jsonl").read_text()) == (True, "")
    other = parse_spec({"algorithm": "fedprox"})
    RunFolder(tmp_path, other, resume=False, overwrite=True).begin()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rounds.jsonl", "spec.yaml"]
    assert yaml.safe_load((tmp_path / "spec.yaml").read_text())["algorithm"]["name"] == "fedprox"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.weekly)]
)
def test_a_signal_ends_a_run_that_can_be_continued(number: int, code: int, tmp_path: Path) -> None:
    # Only the signal makes a checkpoint.
    sets = ("rounds=100000", "checkpoint.every=50000", "resources.workers=1")
    words = ["run", "demo", *(f"--set={each}" for each in sets), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "FEDSIM_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "api.cli.main", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background processes with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            rounds, deadline = tmp_path / "out" / "rounds.jsonl", time.monotonic() + 240
            while not rounds.exists() or len(rounds.read_text().splitlines()) < 6:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == code, said
    assert "stopping after this round" in said
    done = len(rounds.read_text().splitlines())
    assert f"--resume continues after round {done} of 100000" in said
    assert not (tmp_path / "out" / "stop").exists()
