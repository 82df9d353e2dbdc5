"""`fedsim verify` and `fedsim run --chaos`: what they say and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.errors import MethodFailed
from jobs.store.states import JobState
from tests.api.service import Fedsim, RunningService, a_round


def write(path: Path, digests: list[str], memories: str | None = None) -> Path:
    records = [
        a_round(number).model_copy(update={"digest": digest, "memory_digest": memories})
        for number, digest in enumerate(digests, start=1)
    ]
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))
    return path


def test_equal_runs_are_exit_0(fedsim: Fedsim, tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", ["x", "y"], "m")
    folder = tmp_path / "run"
    folder.mkdir()
    lines = write(folder / "rounds.jsonl", ["x", "y"], "m").read_text().splitlines()
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps({"spec": {}, "rounds": [json.loads(line) for line in lines]}, indent=2))
    for other in (folder, whole):
        outcome = fedsim("verify", a, other)
        assert outcome.code == 0, outcome.err
        assert outcome.out == "equal: 2 rounds agree, bit for bit\n"
        assert fedsim("verify", a, other, "--format", "json").data == {
            "equal": True,
            "rounds": 2,
            "difference": None,
        }


def test_a_last_line_that_was_cut_off_is_left_out(fedsim: Fedsim, tmp_path: Path) -> None:
    """A run that is killed as it writes loses that record, and no other."""
    a, b = (write(tmp_path / f"{name}.jsonl", ["x", "y"]) for name in "ab")
    for file in (a, b):
        file.write_text(file.read_text() + '{"round": 3, "dig')
    assert fedsim("verify", a, b).out == "equal: 2 rounds agree, bit for bit\n"
    b.write_text('{"round": 1, "dig\n' + a.read_text())
    outcome = fedsim("verify", a, b)
    assert outcome.code == 2
    assert "b.jsonl' has no round records" in outcome.err


def test_the_first_round_that_differs_is_shown(fedsim: Fedsim, tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", ["x", "aaaa", "z"])
    b = write(tmp_path / "b.jsonl", ["x", "bbbb", "q"])
    outcome = fedsim("verify", a, b)
    assert outcome.code == 1
    assert "1 round agrees" in outcome.err
    assert "round 2 differs" in outcome.err
    for cell in ("state", "aaaa", "bbbb", "a.jsonl", "b.jsonl"):
        assert cell in outcome.out
    assert "memories" not in outcome.out
    found = fedsim("verify", a, b, "--format", "json")
    assert found.code == 1
    assert found.data["difference"] == {"round": 2, "state": ["aaaa", "bbbb"]}


def test_runs_that_were_stacked_differently_are_told_apart(fedsim: Fedsim, tmp_path: Path) -> None:
    found = []
    for name, digest, width in (("a", "x", 1), ("b", "y", 8), ("c", "x", 8)):
        record = json.loads(write(tmp_path / f"{name}.jsonl", [digest]).read_text())
        record["engine"] = {"pool": "ray", "width": width}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record))
        found.append(tmp_path / f"{name}.jsonl")
    a, b, c = found
    assert fedsim("verify", a, c).code == 0
    outcome = fedsim("verify", a, b)
    assert outcome.code == 1
    assert "stack sizes differ (1 and 8)" in outcome.err


def test_client_states_and_missing_rounds_are_differences(fedsim: Fedsim, tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", ["x"], "m")
    b = write(tmp_path / "b.jsonl", ["x"], "n")
    c = write(tmp_path / "c.jsonl", ["x", "y"], "m")
    assert fedsim("verify", a, b, "--format", "json").data["difference"] == {
        "round": 1,
        "memories": ["m", "n"],
    }
    longer = fedsim("verify", a, c, "--format", "json")
    assert longer.code == 1
    assert longer.data["rounds"] == 1
    assert longer.data["difference"] == {"round": 2, "state": [None, "y"], "memories": [None, "m"]}
    for runs in ((a, c), (c, a)):
        outcome = fedsim("verify", *runs)
        assert (outcome.code, outcome.out) == (1, "")
        assert f"1 round agrees; {a} ends there, and {c} also has round 2" in " ".join(outcome.err.split())


def test_client_states_of_one_run_alone_are_not_compared(fedsim: Fedsim, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", ["x", "y"], "m"), write(tmp_path / "b.jsonl", ["x", "y"])
    outcome = fedsim("verify", a, b)
    assert (outcome.code, outcome.out) == (0, "equal: 2 rounds agree, bit for bit\n")
    assert f"only {a} has client states in some rounds: they are not compared there" in " ".join(
        outcome.err.split()
    )
    assert fedsim("verify", b, a, "--format", "json").data["only_with_client_states"] == "second"
    c = write(tmp_path / "c.jsonl", ["x", "z"])
    found = fedsim("verify", a, c, "--format", "json")
    assert (found.code, found.data["difference"]) == (1, {"round": 2, "state": ["y", "z"]})


def test_jobs_of_a_service_are_compared_with_each_other_and_with_files(
    online: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    first, second = service.ended(rounds=3), service.ended(rounds=3)
    assert online("verify", first.id, second.id).code == 0
    file = write(tmp_path / "a.jsonl", [a_round(n).digest for n in (1, 2)])
    assert online("verify", first.id, file).code == 1
    assert service.store.get(first.id).state is JobState.SUCCEEDED
    assert online("verify", first.id, "nosuchjob").code == 4
    waiting = service.queued()
    nothing = online("verify", waiting.id, waiting.id)
    assert (nothing.code, nothing.out) == (2, "")
    assert f"{waiting.id} is QUEUED" in nothing.err
    assert "nothing to compare" in nothing.err


@pytest.mark.parametrize("text", ["", "{}", "3", "[1]", '{"round": 1}', "no json\n", '{"rounds": []}'])
def test_files_without_records_are_exit_2(fedsim: Fedsim, tmp_path: Path, text: str) -> None:
    good, bad = write(tmp_path / "a.jsonl", ["x"]), tmp_path / "bad"
    bad.write_text(text)
    outcome = fedsim("verify", good, bad)
    assert outcome.code == 2
    assert "has no round records" in outcome.err
    assert fedsim("verify", tmp_path, good).code == 2


@pytest.mark.parametrize("wrong", ["kill-actors=0.1", "kill-actor=2", "kill-actor", "fail-client=-0.1"])
def test_wrong_chaos_is_exit_2(fedsim: Fedsim, wrong: str) -> None:
    outcome = fedsim("run", "demo", "--chaos", wrong)
    assert outcome.code == 2
    assert wrong in outcome.err
    assert outcome.out == ""


QUICK = ("--set", "rounds=1", "--set", "resources.workers=1", "--set", "clients.fraction=0.04")


@pytest.mark.weekly
def test_a_run_with_chaos_verifies_against_one_without(
    fedsim: Fedsim, tmp_path: Path, ray_cluster: None
) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    assert fedsim("run", "demo", *QUICK, "--out", calm).code == 0
    chaos = ("--chaos", "kill-actor=1", "--chaos", "fail-client=0", "--set", "faults.max_retries=1")
    assert fedsim("run", "demo", *QUICK, *chaos, "--out", wild).code == 0
    records = [json.loads(line) for line in (wild / "rounds.jsonl").read_text().splitlines()]
    assert records[0]["engine"]["restarts"] > 0
    assert fedsim("verify", calm, wild).code == 0


def test_a_failure_with_a_trace_is_exit_1_and_the_trace_is_kept(
    fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise MethodFailed("FedAvg", "aggregate", "KeyError: 'w'", "Traceback: line 7")

    monkeypatch.setattr("jobs.spec.presets", broken)
    failed = fedsim("presets")
    assert failed.code == 1
    assert "FedAvg failed in aggregate: KeyError: 'w'" in failed.err
    assert Path(failed.err.split()[-1]).read_text() == "Traceback: line 7"
