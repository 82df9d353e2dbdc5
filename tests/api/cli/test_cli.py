"""The command line, in this process: exit codes, what goes to which stream, and what a command prints."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
import typer
from rich.console import Console
from safetensors import safe_open

from api.cli import display
from api.cli import main as cli
from api.cli.algorithm_table import make_algorithms_table
from api.cli.commands.catalogue import _describe_stacking
from api.cli.commands.run import describe_divergence, describe_extra_rounds
from api.sdk.client import FedSimClient
from api.sdk.started_service import StartedService
from fedsim.errors import (
    ClientFailed,
    DataNotFound,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    SettingsError,
    Unreachable,
)
from jobs.kinds import Kind
from jobs.spec import load_spec, parse_spec, preset_text
from tests.api.service import Fedsim, RunningService, a_round

COMMANDS = (
    *("demo", "run", "serve", "stop", "backup", "recover", "submit", "clone", "list", "show", "watch"),
    *("events", "logs", "rounds", "artifacts", "cancel", "resume", "delete", "sweep", "compare", "verify"),
    *("plan", "partition", "check", "inspect", "new", "algorithms", "models", "datasets", "partitions"),
    *("samplers", "attacks", "aggregators", "compressors", "optimizers", "schedules", "fleets"),
    *("policies", "presets", "schema", "cluster", "export", "report", "reproduce", "tune"),
)


def test_help_names_every_command_and_loads_nothing_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "api.cli.main", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "ray", "httpx", "pydantic", "sqlalchemy", "fastapi", "numpy"}


def test_a_reader_that_has_enough_is_no_error() -> None:
    for words in (["schema"], ["algorithms"], ["presets", "--format", "json"]):
        with subprocess.Popen(
            [sys.executable, "-m", "api.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(120) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""


def test_a_terminal_without_a_sign_shows_another() -> None:
    code = "import sys; from api.cli import main; main._run = lambda: print('\u2212 0.3'); main.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "? 0.3\n")


def test_a_narrow_terminal_breaks_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Console(width=40, file=io.StringIO())
    monkeypatch.setattr(display, "make_data_console", lambda: drawn)
    cells = ("k3v9a7xq2", "a name that may be broken", "200/200", "0.2284")
    table = display.make_table(("id", "name", "round", "score"), [cells], numbers=("round", "score"))
    display.print_table(table, unbroken=("id",))
    line = next(line for line in drawn.file.getvalue().splitlines() if "k3v9" in line)
    assert all(cell in line for cell in (cells[0], *cells[2:]))


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


def test_a_sweep_and_a_spec_are_told_apart(fedsim: Fedsim, tmp_path: Path) -> None:
    sweep, spec = tmp_path / "sweep.yaml", tmp_path / "spec.yaml"
    sweep.write_text("base: demo\naxes: {local.lr: [0.05, 0.1]}\nseeds: [1]\n")
    spec.write_text("algorithm: fedavg\n")
    for command, file, said in (
        ("run", sweep, "is the file of a sweep"),
        ("check", sweep, "`fedsim sweep FILE`"),
        ("sweep", spec, "make its run with `fedsim run FILE`"),
    ):
        outcome = fedsim(command, str(file))
        assert outcome.code == 2
        assert said in outcome.err
        assert "1 error" in outcome.err


def test_an_address_that_is_none_is_no_bug(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_URL", "http://127.0.0.1:80O0")
    for words in (["demo"], ["list"]):
        outcome = fedsim(*words)
        assert outcome.code == 2
        assert "is no address of a service" in outcome.err


def test_arguments_that_the_service_refuses_are_exit_2_and_named(online: Fedsim) -> None:
    for option, value, part in (("--priority", "99999", "priority: "), ("--label", "a b=c", "a b")):
        outcome = online("submit", "demo", option, value)
        assert outcome.code == 2
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
    assert cli.find_exit_code(error) == code


def test_nobody_there_is_exit_4(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.sdk.transport.connection.PAUSES", (0.0,))
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


def test_a_full_disk_is_no_bug_and_is_named(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/rounds.jsonl")

    monkeypatch.setattr("jobs.spec.presets", write)
    outcome = fedsim("presets")
    assert outcome.code == 1
    assert "/full/rounds.jsonl cannot be used: No space left" in outcome.err
    assert "free space" in outcome.err


def test_being_stopped_is_exit_130(fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.spec.presets", stopped)
    assert fedsim("presets").code == 130


def test_every_command_that_prints_data_can_print_json() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    without = {
        name
        for name, command in commands.items()
        if not any("--format" in parameter.opts for parameter in command.params)
    }
    assert without == {"backup", "cluster", "export", "new", "recover", "serve", "stop"}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_catalogue_is_the_same_with_and_without_a_service(
    fedsim: Fedsim, service: RunningService, kind: str
) -> None:
    local = fedsim(kind, "--format", "json")
    assert local.code == 0, local.err
    remote = fedsim(kind, "--format", "json", "--url", service.url)
    assert local.data == remote.data
    assert local.data[0]["name"] in fedsim(kind).out


def test_one_entry_is_shown_with_what_each_parameter_may_be_and_means(fedsim: Fedsim) -> None:
    shown = " ".join(fedsim("algorithms", "fedgen").out.split())
    assert "integer from 1 or null" in shown
    assert "generated features of a local step" in shown
    assert "null" in shown
    assert "None" not in shown
    assert fedsim("algorithms", "fedgen", "--format", "json").data["name"] == "fedgen"
    assert "ROOT/reuters21578" in fedsim("datasets", "reuters").out
    missing = fedsim("models", "lenet")
    assert missing.code == 2
    assert "did you mean 'lenet5'?" in missing.err


def test_algorithms_are_listed_by_purpose(fedsim: Fedsim, service: RunningService) -> None:
    found = fedsim("algorithms", "--for", "personalization", "--format", "json")
    names = [entry["name"] for entry in found.data]
    assert "fedper" in names
    assert "fedavg" not in names
    # Methods with the purpose in the first place come first.
    assert names.index("ace_pfl") < names.index("pfedme")
    drift = fedsim("algorithms", "--for", "client-drift", "--format", "json", "--url", service.url).data
    assert {"fedprox", "scaffold"} <= {entry["name"] for entry in drift}
    text = fedsim("algorithms", "--for", "client-drift").out
    row = next(line for line in text.splitlines() if line.split()[:1] == ["scaffold"])
    assert "Karimireddy et al., ICML 2020" in row
    assert "fedper" not in text


def test_an_algorithm_is_shown_with_its_purposes_and_costs(fedsim: Fedsim) -> None:
    text = " ".join(fedsim("algorithms", "scaffold").out.split())
    assert "For: client-drift." in text
    assert "traffic 2, computing 1. Payloads down: control, params; up: control, params." in text
    assert "small case with model=fedgen_cnn" in " ".join(fedsim("algorithms", "fedad").out.split())


def test_a_wrong_purpose_is_refused(fedsim: Fedsim) -> None:
    wrong = fedsim("algorithms", "--for", "speed")
    assert wrong.code == 2
    assert "for: is no purpose (got 'speed'); one of: client-drift," in " ".join(wrong.err.split())
    both = fedsim("algorithms", "fedavg", "--for", "privacy")
    assert both.code == 2
    assert "leave out NAME or --for" in both.err


def test_narrow_tables_of_algorithms_have_neither_summaries_nor_payloads() -> None:
    """The caption explains the payloads where they are shown, and else names the width that shows them."""
    costs = {"traffic": 1.5, "computing": 1, "down": ["params", "teacher"], "up": []}
    entry = {"name": "a", "summary": "S", "citation": "Ma, 2025", "plugin": "mine 1.0", "costs": costs}
    wide, middle, narrow = (make_algorithms_table([entry], width) for width in (170, 120, 100))
    assert [column.header for column in wide.columns][-3:] == ["down", "up", "summary"]
    assert [column.header for column in middle.columns][-1] == "up"
    assert str(next(middle.columns[5].cells)) == "params, teacher"
    assert [column.header for column in narrow.columns][-1] == "computing"
    assert str(next(narrow.columns[2].cells)) == "Ma, 2025 [mine 1.0]"
    explained = "Down and up: the payloads that a client gets and sends."
    assert str(wide.caption) == str(middle.caption) == explained
    assert str(narrow.caption) == "A wider terminal (120 columns) shows what a client gets and sends."


def test_stacking_is_described_in_two_sentences() -> None:
    some = [{"name": "a", "stacks": True, "why_not_stacked": ""}]
    some.append({"name": "b", "stacks": False, "why_not_stacked": "its loops differ"})
    text = _describe_stacking(some)
    assert text.endswith(
        "works with 1 of 2 models with their defaults. Without stacking: b (its loops differ)."
    )


def test_models_say_with_which_of_them_clients_train_at_once(fedsim: Fedsim) -> None:
    lines = fedsim("models").out.splitlines()
    assert any(line.split()[:3] == ["model", "stackable", "summary"] for line in lines)
    told = {words[0]: words[1] for words in map(str.split, lines) if len(words) > 1}
    assert (told["mlp"], told["resnet18"]) == ("yes", "no")
    assert "resnet9, vgg16, vgg19 (BatchNorm keeps running statistics;" in " ".join(" ".join(lines).split())
    data = {entry["name"]: entry for entry in fedsim("models", "--format", "json").data}
    assert (data["mlp"]["stacks"], data["mlp"]["why_not_stacked"]) == (True, "")
    assert "norm: group" in data["resnet18"]["why_not_stacked"]


def test_presets_and_schema(fedsim: Fedsim) -> None:
    assert "demo" in fedsim("presets").out
    assert {"name", "summary", "text"} == set(fedsim("presets", "--format", "json").data[0])
    assert fedsim("presets", "demo").out == preset_text("demo")
    assert fedsim("presets", "demo", "--format", "json").data["text"] == preset_text("demo")
    unknown = fedsim("presets", "dem")
    assert (unknown.code, "demo" in unknown.err) == (2, True)
    assert fedsim("schema").data["title"] == "JobSpec"
    assert fedsim("schema", "--format", "json").out == fedsim("schema").out  # it is JSON in any case


def test_a_service_started_here_is_found_without_naming_it(
    fedsim: Fedsim, service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    note = StartedService(1, service.url, service.app.state.instance)
    (home / "serve.json").write_text(json.dumps(note._asdict()))
    assert fedsim("list", "--format", "json").code == 0
    monkeypatch.setenv("FEDSIM_HOME", str(home))
    monkeypatch.delenv("FEDSIM_URL", raising=False)
    with FedSimClient() as client:
        assert client.version()["api"] == "v1"


def test_a_spec_is_checked_with_the_data_beside_it(
    fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    example = Path(__file__).parents[3] / "examples" / "own-data" / "experiment.yaml"
    outcome = fedsim("check", example, "--format", "json")
    assert (outcome.code, outcome.data["valid"]) == (0, True)
    assert "own-data is valid: 10 rounds, 12 clients" in fedsim("check", example).err
    wrong = fedsim("check", example, "--set", "data.dataset.client=hospitals")
    assert wrong.code == 2
    assert "did you mean 'hospital'?" in wrong.err


def test_run_prints_and_writes_the_whole_run(fedsim: Fedsim, tmp_path: Path, ray_cluster: None) -> None:
    out = tmp_path / "out"
    sets = ("rounds=2", "resources.workers=1", "data.tests=matched")
    outcome = fedsim("run", "demo", *(f"--set={one}" for one in sets), "--out", out, "--format", "json")
    assert outcome.code == 0, outcome.err
    document = outcome.data
    assert set(document) == {"spec", "rounds", "result"}
    assert set(document["result"]) == {"final", "best", "totals"}
    assert [record["round"] for record in document["rounds"]] == [1, 2]
    assert {file.name for file in out.iterdir()} == {
        ".lock",
        "spec.yaml",
        "rounds.jsonl",
        "rounds.csv",
        "result.json",
        "model.safetensors",
        "personal.csv",
        "checkpoints",
    }
    final = document["result"]["final"]
    clients = list(csv.DictReader((out / "personal.csv").read_text().splitlines()))
    assert len(clients) == final["personal_clients"]
    assert sum(int(row["correct"]) for row in clients) == round(
        final["personal_accuracy"] * sum(int(row["tests"]) for row in clients)
    )
    assert document["result"]["totals"]["cost"]["flops"] > 0
    lines = (out / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == document["rounds"]
    assert json.loads((out / "result.json").read_text()) == document["result"]
    assert load_spec(str(out / "spec.yaml")) == parse_spec(document["spec"])


@pytest.mark.slow
@pytest.mark.slow
def test_a_run_leaves_no_scores_of_the_run_before(fedsim: Fedsim, tmp_path: Path, ray_cluster: None) -> None:
    (tmp_path / "personal.csv").write_text("client\n")
    sets = ("rounds=1", "resources.workers=1", "data.tests=global")
    outcome = fedsim("run", "demo", *(f"--set={one}" for one in sets), "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "personal.csv").exists()


def test_a_run_without_a_test_set_shows_the_validation_set(fedsim: Fedsim) -> None:
    words = ("evaluation.test=false", "evaluation.validation=0.2", "rounds=1")
    done = fedsim("run", "demo", *(part for word in words for part in ("--set", word)))
    assert done.code == 0, done.err
    assert "accuracy (validation)" in " ".join(done.out.split())


def test_run_refuses_a_folder_that_cannot_be(fedsim: Fedsim, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = fedsim("run", "demo", "--out", tmp_path / "file" / "out")
    assert outcome.code == 2
    assert "--out" in outcome.err


@pytest.mark.parametrize(
    ("loss", "said"), [(float("inf"), "loss in round 2 is not"), (None, "round 2"), (0.3, "")]
)
def test_a_model_that_has_diverged_is_named(loss: float | None, said: str) -> None:
    bad = a_round(2).model_copy(update={"metrics": {"global_loss": loss}})
    records = [a_round(1, global_loss=2.0), bad, a_round(3)]
    assert said in describe_divergence(records)
    assert bool(describe_divergence(records)) is bool(said)


def test_fewer_rounds_than_a_run_has_already_are_told() -> None:
    assert (
        describe_extra_rounds(5, 10)
        == "note: this run already has 10 rounds; the spec asks for 5, and nothing is removed"
    )
    assert describe_extra_rounds(10, 10) == ""


@pytest.mark.slow
def test_a_run_goes_on_from_its_folder(
    fedsim: Fedsim, tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named from where the command is run, where Ray's own processes are not."""
    monkeypatch.chdir(tmp_path)
    out = Path("out")
    command = (
        "run",
        "demo",
        "--set",
        "resources.workers=1",
        "--set",
        "checkpoint.every=2",
        "--format",
        "json",
    )
    whole = fedsim(*command, "--set", "rounds=4", "--out", out)
    assert whole.code == 0, whole.err
    (out / "checkpoints" / "manifest-000004.json").unlink()
    cut_off = fedsim(*command, "--set", "rounds=4", "--out", out)
    assert cut_off.code == 2
    assert "'out' has a run: round 2 of 4" in cut_off.err
    assert "--resume continues it, --overwrite replaces it" in cut_off.err
    other = fedsim(*command, "--set", "local.lr=0.5", "--out", out, "--resume")
    assert other.code == 2
    assert "has a run of another experiment: local.lr was" in other.err
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 4
    on = fedsim(*command, "--set", "rounds=5", "--out", out, "--resume")
    assert on.code == 0, on.err
    assert "going on after round 2, from its checkpoint" in on.err
    digests = [record["digest"] for record in on.data["rounds"]]
    assert digests[:4] == [record["digest"] for record in whole.data["rounds"]]
    assert len(digests) == len((out / "rounds.jsonl").read_text().splitlines()) == 5
    assert fedsim("run", "demo", "--resume").code == 2


@pytest.mark.slow
def test_a_run_begins_from_the_model_of_another_run(
    fedsim: Fedsim, tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("run", "demo", "--set", "resources.workers=1", "--format", "json", "--set", "rounds=1")
    cold = fedsim(*command, "--out", "cold")
    assert cold.code == 0, cold.err
    warm = fedsim(*command, "--set", "model.init=cold", "--out", "warm")
    assert warm.code == 0, warm.err
    assert warm.data["rounds"][0]["digest"] != cold.data["rounds"][0]["digest"]
    spec = load_spec("warm/spec.yaml")
    assert spec.models[0].init is not None
    digest = sha256((tmp_path / "cold" / "model.safetensors").read_bytes()).hexdigest()
    assert spec.models[0].init.sha256 == digest
    with safe_open("warm/model.safetensors", "np") as file:
        assert json.loads(file.metadata()["init"])["sha256"] == digest
    on = fedsim("run", "warm/spec.yaml", "--set", "rounds=2", "--out", "warm", "--resume", "--format", "json")
    assert on.code == 0, on.err
    assert on.data["rounds"][0]["digest"] == warm.data["rounds"][0]["digest"]
    shutil.copy("warm/model.safetensors", "cold/model.safetensors")
    refused = fedsim("run", "warm/spec.yaml", "--set", "rounds=3", "--out", "warm", "--resume")
    assert refused.code == 2
    assert "has changed since" in refused.err
    other = fedsim(*command, "--set", "model.init=cold", "--set", "rounds=3", "--out", "warm", "--resume")
    assert other.code == 1
    assert "is of another experiment: model.init.sha256 was" in other.err
