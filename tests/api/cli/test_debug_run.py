"""`fedsim run --debug`: the same rounds without Ray, with breakpoints and plain tracebacks."""

from __future__ import annotations

import subprocess
import sys
from bdb import BdbQuit
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from api.reports.html_report import RunReport, list_facts
from jobs.store.records import RoundRecord
from tests.api.service import Fedsim

MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        {line}
        return self.head(x.flatten(1))
"""

SETS = ("--set=rounds=2", "--set=local.epochs=1", "--set=clients.total=6")

stops: list[str] = []


def note_breakpoint() -> None:
    """Stand in for pdb: note the function that called `breakpoint()`."""
    stops.append(sys._getframe(1).f_code.co_name)


def leave_debugger() -> None:
    """Stand in for a user who leaves pdb by `q`."""
    raise BdbQuit


def own_model(folder: Path, line: str) -> tuple[str, ...]:
    """The options for a model file of the user's own with this line in its forward pass."""
    (folder / "mine.py").write_text(MODEL.format(line=line))
    return ("--set", f"model={{name: python, path: '{folder / 'mine.py'}:Net'}}")


def read_weights(file: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """The metadata and the weights of a file, whose order varies."""
    with safe_open(file, "np") as opened:
        return opened.metadata(), {name: value.tobytes() for name, value in load_file(file).items()}


def test_a_debug_run_needs_neither_ray_nor_other_slow_libraries() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "api.cli.main", "run", "demo", "--debug", *SETS],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch" in loaded
    assert not loaded & {"ray", "plotly", "sklearn", "ot", "fastapi", "sqlalchemy", "pandas", "scipy.stats"}
    assert "demo: round 1/2  accuracy" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [pytest.param("scaffold", marks=pytest.mark.weekly), "fedper"])
def test_a_debug_run_has_the_digests_files_and_scores_of_a_run_on_actors(
    fedsim: Fedsim, tmp_path: Path, ray_cluster: None, algorithm: str
) -> None:
    sets = ("--set", f"algorithm={algorithm}", "--set=data.tests=merged", "--set=evaluation.validation=0.1")
    command = ("run", "demo", *SETS, *sets, "--format", "json", "--set=resources.workers=2", "--out")
    actors, debug = fedsim(*command, tmp_path / "actors"), fedsim(*command, tmp_path / "debug", "--debug")
    assert (actors.code, debug.code) == (0, 0), actors.err + debug.err
    assert "--debug runs without Ray and ignores resources.workers" in debug.err
    varying = {"seconds": None, "engine": None}
    rounds = [[record | varying for record in each.data["rounds"]] for each in (debug, actors)]
    assert rounds[0] == rounds[1]
    # The server of FedPer has no whole model.
    names = ("chosen.safetensors", "model.safetensors") if algorithm == "scaffold" else ()
    assert {file.name for file in (tmp_path / "debug").glob("*.safetensors")} == set(names)
    for name in names:
        assert read_weights(tmp_path / "debug" / name) == read_weights(tmp_path / "actors" / name)
    scores = [(tmp_path / folder / "personal.csv").read_text() for folder in ("debug", "actors")]
    assert scores[0] == scores[1]
    assert not (tmp_path / "debug" / "checkpoints").exists()
    again = fedsim(*command, tmp_path / "actors", "--debug")
    assert again.code == 2
    assert "has checkpoints of a run" in again.err


def test_breakpoints_of_a_model_stop_in_the_run_and_not_in_a_trial(
    fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", f"{__name__}.note_breakpoint")
    stops.clear()
    line = "len(x) == 3 and breakpoint()"  # a trial runs the model on 3 examples, and so may a last batch
    sets = (*own_model(tmp_path, line), "--set=local.batch_size=3", "--set=evaluation.every=1")
    outcome = fedsim("run", "demo", "--debug", *SETS, *sets, "--set=data.limit=60", "--set=rounds=1")
    assert outcome.code == 0, outcome.err
    whole_batches = len(stops)
    assert set(stops) == {"forward"}
    assert 0 < whole_batches <= 20


def test_a_run_that_stops_says_why_and_writes_the_model_of_the_round_it_names(
    fedsim: Fedsim, tmp_path: Path
) -> None:
    stop = "--set=stop={metric: global_loss, patience: 1, max_bytes: 400000}"
    outcome = fedsim("run", "demo", "--debug", stop, "--set=local.lr=1.5", "--out", tmp_path, "--format=json")
    assert outcome.code == 0, outcome.err
    rounds, result = outcome.data["rounds"], outcome.data["result"]
    assert 1 < len(rounds) < 20
    assert [record["end"] for record in rounds[:-1]] == [None] * (len(rounds) - 1)
    assert rounds[-1]["end"] == result["end"]
    assert result["end"]["message"] in outcome.err
    best = result["end"]["result_round"]
    assert result["final"] == rounds[best - 1]["metrics"] == result["end"]["metrics"]
    assert read_weights(tmp_path / "model.safetensors")[0]["round"] == str(best)
    header = (tmp_path / "rounds.csv").read_text().splitlines()[0]
    assert "end.result_round" in header
    records = [RoundRecord.model_validate(record) for record in rounds]
    facts = dict(list_facts(RunReport("", "", "", "", {}, records)))
    assert facts["end"] == result["end"]["message"]
    (line,) = compare_runs([ComparedRun("a", "a", records)], "global_loss").lines
    assert line.final is not None
    assert line.final.round == best


def test_a_user_who_leaves_the_debugger_leaves_the_run(
    fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", f"{__name__}.leave_debugger")
    outcome = fedsim("run", "demo", "--debug", *SETS, *own_model(tmp_path, "breakpoint()"))
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


def test_an_error_of_a_client_shows_the_line_of_the_user(fedsim: Fedsim, tmp_path: Path) -> None:
    sets = own_model(tmp_path, "assert len(x) != 10, 'ten'")
    outcome = fedsim("run", "demo", "--debug", *SETS, *sets, "--set=faults.client_error=skip")
    assert outcome.code == 1
    trace, _, message = outcome.err.partition("error: ")
    assert "in forward\n    assert len(x) != 10, 'ten'\n" in trace
    assert trace.rstrip().endswith("AssertionError: ten")
    assert "failed in train: AssertionError: ten" in message
    assert "the stack trace is in" not in message


def test_a_model_that_cannot_run_shows_its_line_and_stops_at_its_breakpoint(
    fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the spec skips breakpoints and reports one line: the model then runs once by itself."""
    line = "breakpoint(); x = x.view(3, 5)"
    monkeypatch.setenv("PYTHONBREAKPOINT", f"{__name__}.note_breakpoint")
    stops.clear()
    outcome = fedsim("run", "demo", "--debug", *SETS, *own_model(tmp_path, line))
    assert outcome.code == 2
    assert stops == ["forward"]
    trace, _, message = outcome.err.partition("error: the spec has 1 error")
    assert f"in forward\n    {line}\n" in trace
    assert "its forward does not take a batch" in message


@pytest.mark.parametrize("option", ["--resume", "--chaos=fail-client=0.5"])
def test_a_debug_run_refuses_what_it_cannot_do(fedsim: Fedsim, tmp_path: Path, option: str) -> None:
    outcome = fedsim("run", "demo", "--debug", option, "--out", tmp_path)
    assert outcome.code == 2
    assert f"--debug with {option.partition('=')[0]}" in outcome.err
