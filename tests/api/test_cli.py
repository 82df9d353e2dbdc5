"""The command line, in this process: exit codes, what goes to which stream, and what a command prints."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from api import cli
from api.commands import demo as demo_command
from api.local_service import Started
from fedsim.errors import (
    ClientFailed,
    DataNotFound,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    SettingsError,
    Unreachable,
)
from jobs.records import Job
from jobs.states import JobState
from tests.api.service import RunningService, a_round

COMMANDS = (
    *(
        "demo",
        "run",
        "serve",
        "stop",
        "submit",
        "list",
        "show",
        "watch",
        "logs",
        "rounds",
        "cancel",
        "delete",
    ),
    *("algorithms", "models", "datasets", "partitions", "presets", "schema"),
)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Fedsim = Callable[..., Outcome]


@pytest.fixture
def fedsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Fedsim:
    """Run the command in this process, in an empty home."""
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedsim", *map(str, arguments)])
        capsys.readouterr()
        code = cli._run()
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def online(fedsim: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Fedsim:
    """The command with FEDSIM_URL set to the tests' server."""
    monkeypatch.setenv("FEDSIM_URL", service.url)
    return fedsim


def play_cluster(service: RunningService, name: str, final: JobState, rounds: int = 3) -> threading.Thread:
    """Run the next job of this name as soon as it is there."""

    earlier = {job.id for job in service.store.queue()}

    def work() -> None:
        end = time.monotonic() + 20
        jobs: list[Job] = []
        while not jobs and time.monotonic() < end:
            time.sleep(0.02)
            jobs = [job for job in service.store.queue() if job.name == name and job.id not in earlier]
        job = jobs[0]
        service.store.advance(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.advance(job.id, JobState.STARTING, JobState.RUNNING)
        for number in range(1, rounds + 1):
            service.store.add_round(job.id, a_round(number))
        service.store.advance(job.id, JobState.RUNNING, final, message="that is how it ended")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_help_names_every_command_and_comes_at_once() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "api.cli", "--help"], capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    assert done.returncode == 0
    for command in [
        "demo",
        "run",
        "serve",
        "stop",
        "submit",
        "list",
        "show",
        "watch",
        "logs",
        "rounds",
        "cancel",
        "delete",
        "algorithms",
        "schema",
    ]:
        assert f" {command} " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "ray", "httpx", "pydantic", "sqlalchemy", "fastapi", "numpy"}
    # Half a second is the promise; the machine of the tests may be busy.
    assert seconds < 3


def test_bad_arguments_are_exit_2(fedsim: Fedsim) -> None:
    assert fedsim("nonsense").code == 2
    assert fedsim("submit").code == 2
    assert fedsim("list", "--format", "xml").code == 2
    assert fedsim("--version").out.startswith("fedsim ")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("no-such-preset", ["spec", "preset"]),
        ("demmo", ["demo"]),
        ("demo --set rounds=0 --set local.lr=fast", ["rounds", "local.lr", "2 errors"]),
        ("demo --set rounds", ["PATH=VALUE"]),
        ("demo --set algoritm=fedavg", ["algorithm"]),
    ],
)
def test_a_bad_spec_is_exit_2_with_every_fault(fedsim: Fedsim, spec: str, parts: list[str]) -> None:
    for command in ("run", "submit"):
        outcome = fedsim(command, *spec.split())
        assert outcome.code == 2, outcome.err
        assert outcome.out == ""
        for part in parts:
            assert part in outcome.err


def test_names_that_do_not_exist_are_exit_2_on_both_ways(online: Fedsim) -> None:
    for command in ("run", "submit"):
        outcome = online(command, "demo", "--set", "algorithm=fedawg")
        assert outcome.code == 2
        assert "did you mean 'fedavg'" in outcome.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DoesNotFit("4 x 0.3 GPU asked, 1 GPU here"), 3),
        (DataNotFound("no files"), 2),
        (SettingsError("FEDSIM_MAX_RUNNING is 'x'"), 2),
        (JobNotFound("none"), 4),
        (Unreachable("nobody"), 4),
        (ClientFailed(3, "train", "boom"), 1),
        (FedsimError("odd"), 5),
    ],
)
def test_each_error_has_its_exit_code(error: FedsimError, code: int) -> None:
    assert cli.exit_code(error) == code


def test_nobody_there_is_exit_4(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.client.PAUSES", (0.0,))
    outcome = fedsim("list", "--url", "http://127.0.0.1:9")
    assert outcome.code == 4
    assert "fedsim serve" in outcome.err


def test_a_bug_is_exit_5_and_its_trace_is_kept(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr("jobs.spec.presets", broken)
    outcome = fedsim("presets")
    assert outcome.code == 5
    assert len(outcome.err.splitlines()) == 1
    trace = Path(outcome.err.split()[-1])
    assert "deep inside" in trace.read_text()


def test_submit_prints_the_id_only(online: Fedsim, service: RunningService) -> None:
    outcome = online("submit", "demo", "--set", "rounds=3", "--priority", 5, "--label", "owner=ada")
    assert outcome.code == 0, outcome.err
    job = service.store.get(outcome.out.strip())
    assert (job.rounds_total, job.priority, job.labels) == (3, 5, {"owner": "ada"})
    assert online("submit", "demo", "--label", "owner").code == 2
    assert online("submit", "demo", "--format", "json").data["state"] == "QUEUED"


@pytest.mark.parametrize(("final", "code"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 1)])
def test_submit_can_wait_for_the_end(
    online: Fedsim, service: RunningService, final: JobState, code: int
) -> None:
    cluster = play_cluster(service, f"wait-{final}", final)
    outcome = online("submit", "demo", "--set", f"name=wait-{final}", "--set", "rounds=3", "--wait")
    cluster.join()
    assert outcome.code == code, outcome.err
    assert "round 3/3" in outcome.err
    assert "that is how it ended" in outcome.err
    assert service.store.get(outcome.out.strip()).state is final


def test_list_and_show(online: Fedsim, service: RunningService) -> None:
    job = service.ended(name="to be [bold]listed[/]", rounds=2)
    outcome = online("list", "--state", "succeeded")
    assert job.id in outcome.out
    assert "[bold]listed[/]" in outcome.out
    found = online("list", "--limit", 1, "--format", "json").data
    assert [each["id"] for each in found] == [job.id]
    shown = online("show", job.id)
    assert "SUCCEEDED" in shown.out
    assert "algorithm:" in shown.out
    assert online("show", job.id, "--format", "json").data["rounds_done"] == 2
    missing = online("show", "0000")
    assert (missing.code, missing.out) == (4, "")


def test_watch_in_all_formats(online: Fedsim, service: RunningService) -> None:
    job = service.ended(rounds=3)
    outcome = online("watch", job.id)
    assert outcome.code == 0, outcome.err
    assert f"job {job.id} SUCCEEDED" in outcome.err
    lines = online("watch", job.id, "--format", "jsonl").out.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    whole = online("watch", job.id, "--format", "json").data
    assert (whole["job"]["state"], len(whole["rounds"])) == ("SUCCEEDED", 3)
    failed = service.running()
    service.store.advance(failed.id, JobState.RUNNING, JobState.FAILED, message="no data")
    outcome = online("watch", failed.id)
    assert outcome.code == 1
    assert "no data" in outcome.err


def test_watch_says_what_a_quiet_job_waits_for(
    online: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.live.QUIET", 0.1)
    job = service.queued()
    service.store.set_waiting(job.id, "2 jobs are ahead of it")
    threading.Timer(0.6, service.store.request_cancel, [job.id]).start()
    outcome = online("watch", job.id)
    assert outcome.code == 1
    assert "waits in the queue: 2 jobs are ahead of it" in outcome.err


def test_rounds_in_all_formats(online: Fedsim, service: RunningService) -> None:
    job = service.ended(rounds=3)
    assert "0.7500" in online("rounds", job.id).out
    rows = list(csv.DictReader(io.StringIO(online("rounds", job.id, "--format", "csv").out)))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert len(online("rounds", job.id, "--format", "json").data) == 3
    assert len(online("rounds", job.id, "--format", "jsonl").out.splitlines()) == 3


def test_logs_cancel_and_delete(online: Fedsim, service: RunningService) -> None:
    job = service.running()
    service.settings.log_path(job.id).write_text("one\ntwo\n")
    assert online("logs", job.id, "--tail", 1).out == "two\n"
    assert online("delete", job.id).code == 4
    assert online("cancel", job.id, "--format", "json").data["state"] == "CANCELLING"
    service.store.advance(job.id, JobState.CANCELLING, JobState.CANCELLED)
    assert online("logs", job.id, "-f").out == "one\ntwo\n"
    assert online("delete", job.id).code == 0
    assert online("show", job.id).code == 4


@pytest.mark.parametrize("kind", ["algorithms", "models", "datasets", "partitions"])
def test_the_catalogue_is_the_same_with_and_without_a_service(
    fedsim: Fedsim, service: RunningService, kind: str
) -> None:
    local = fedsim(kind, "--format", "json")
    assert local.code == 0, local.err
    remote = fedsim(kind, "--format", "json", "--url", service.url)
    assert local.data == remote.data
    assert local.data[0]["name"] in fedsim(kind).out


def test_presets_and_schema(fedsim: Fedsim) -> None:
    assert "demo" in fedsim("presets").out
    assert {"name", "summary", "text"} == set(fedsim("presets", "--format", "json").data[0])
    assert fedsim("schema").data["title"] == "JobSpec"


def test_demo_uses_the_service_that_answers(online: Fedsim, service: RunningService) -> None:
    cluster = play_cluster(service, "demo", JobState.SUCCEEDED, rounds=20)
    outcome = online("demo", "--seed", 3)
    cluster.join()
    assert outcome.code == 0, outcome.err
    assert f"using the service at {service.url}" in outcome.err
    assert "50 clients (dirichlet), 0.2 of them in a round" in outcome.err
    assert f"{service.url}/" in outcome.err
    assert "20.0 kB" in outcome.out
    newest = service.store.list(limit=1).jobs[0]
    assert (newest.name, newest.spec["seed"]) == ("demo", 3)


def test_demo_fails_with_its_job(online: Fedsim, service: RunningService) -> None:
    cluster = play_cluster(service, "demo", JobState.FAILED)
    outcome = online("demo")
    cluster.join()
    assert outcome.code == 1
    assert "that is how it ended" in outcome.err


def test_demo_starts_nothing_where_a_service_was_named(
    fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSIM_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(demo_command, "IDLE_EXIT", 1)
    assert fedsim("demo").code == 4


def test_a_service_started_here_is_found_without_naming_it(
    fedsim: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    note = Started(1, service.url, service.app.state.instance)
    (home / "serve.json").write_text(json.dumps(note._asdict()))
    assert fedsim("list", "--format", "json").code == 0


def test_run_prints_and_writes_the_whole_run(fedsim: Fedsim, tmp_path: Path, ray_cluster: None) -> None:
    out = tmp_path / "out"
    arguments = ("run", "demo", "--set", "rounds=2", "--set", "resources.workers=1", "--out", out)
    outcome = fedsim(*arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    document = outcome.data
    assert set(document) == {"spec", "rounds", "result"}
    assert set(document["result"]) == {"final", "best", "totals"}
    assert [record["round"] for record in document["rounds"]] == [1, 2]
    assert {file.name for file in out.iterdir()} == {"spec.yaml", "rounds.jsonl", "rounds.csv", "result.json"}
    lines = (out / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == document["rounds"]
    assert json.loads((out / "result.json").read_text()) == document["result"]
    again = fedsim("run", out / "spec.yaml", "--format", "jsonl")
    digests = [json.loads(line)["digest"] for line in again.out.splitlines()]
    assert digests == [record["digest"] for record in document["rounds"]]


def test_run_refuses_a_folder_that_cannot_be(fedsim: Fedsim, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = fedsim("run", "demo", "--out", tmp_path / "file" / "out")
    assert outcome.code == 2
    assert "--out" in outcome.err
