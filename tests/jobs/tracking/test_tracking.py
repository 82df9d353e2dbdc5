"""Trackers, read back by their own libraries."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.base.costs import Cost, Traffic
from fedsim.errors import SettingsError, SpecError
from jobs.run.artifacts import save_model
from jobs.run.job_listener import JobListener
from jobs.run.job_watcher import JobWatcher
from jobs.run.ledger import StoreLedger
from jobs.settings import Settings
from jobs.spec import json_schema, parse_spec
from jobs.store.job_store import JobStore
from jobs.store.records import Engine, RoundRecord, Seconds
from jobs.tracking import background
from jobs.tracking.background import BackgroundTracker
from jobs.tracking.tracked_run import EndState, TrackedRun, Tracker, list_figures
from jobs.tracking.trackers import TRACKERS, Trackers, check_trackers

SPEC = parse_spec({"algorithm": {"name": "fedprox", "mu": 0.1}, "local": {"lr": 0.05}})


def record(round: int, accuracy: float = 0.5) -> RoundRecord:
    return RoundRecord(
        round=round,
        digest="d" * 64,
        cohort=4,
        failed=[3],
        seconds=Seconds(total=2.0, train=1.5),
        bytes=Traffic(down=100, up=50),
        cost=Cost(updates=10, flops=1000),
        metrics={"global_accuracy": accuracy, "global_loss": None},
        engine=Engine(pool="ray", actors=2),
        method={"drift_norm": 0.25, "phase": "warm"},
    )


def track(names: list[str], folder: Path, rounds: list[RoundRecord], **options: Any) -> list[str]:
    """Track a run to its end; return the warnings."""
    warnings = list[str]()
    run = TrackedRun.from_spec("run17", SPEC, folder)
    trackers = Trackers(names, run, warnings.append)
    for each in rounds:
        trackers.log_round(each)
    trackers.end("FINISHED", options.get("files", {"spec.yaml": b"algorithm: fedprox\n"}))
    return warnings


def test_figures_are_the_finite_numbers_of_a_record() -> None:
    assert list_figures(record(1)) == {
        "global_accuracy": 0.5,
        "method/drift_norm": 0.25,
        "seconds/total": 2.0,
        "seconds/train": 1.5,
        "bytes/down": 100,
        "bytes/up": 50,
        "cost/updates": 10,
        "cost/flops": 1000,
        "clients/cohort": 4,
        "clients/failed": 1,
        "system/workers": 2,
        "system/restarts": 0,
        "system/stack_size": 1,
    }
    parameters = TrackedRun.from_spec("a", SPEC, None).parameters
    assert (parameters["local.lr"], parameters["algorithm.mu"]) == (0.05, 0.1)


@pytest.mark.slow
def test_tensorboard_reads_a_run_that_went_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert not track(["tensorboard"], tmp_path, [record(1, 0.1), record(2, 0.2), record(3, 0.9)])
    assert not track(["tensorboard"], tmp_path, [record(3, 0.3), record(4, 0.4)])  # round 3 ran again
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(each.step, round(each.value, 6)) for each in found.Scalars("global_accuracy")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert "global_loss" not in found.Tags()["scalars"]
    assert b"| local.lr | 0.05 |" in found.Tensors("spec/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow's own code
def test_mlflow_reads_a_run_that_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(background, "END_SECONDS", 120.0)
    assert not track(["mlflow"], tmp_path, [record(1, 0.1), record(2, 0.2)])
    assert not track(["mlflow"], tmp_path, [record(1, 0.1), record(2, 0.2), record(3, 0.3)])
    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedsim")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["local.lr"] == "0.05"
    assert run.data.tags["fedsim.id"] == "run17"
    history = client.get_metric_history(run.info.run_id, "global_accuracy")
    assert [(each.step, each.value) for each in history] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["spec.yaml"]


@pytest.mark.slow
def test_wandb_writes_offline_files_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    check_trackers(["wandb"])
    assert not track(["wandb"], tmp_path, [record(1, 0.1), record(2, 0.2)])
    wandb.teardown()  # W&B's own process writes the file; the end of a run does not wait for that
    [file] = tmp_path.glob("wandb/offline-run-*/run-run17.wandb")
    config, history = dict[str, Any](), list[tuple[int, float]]()
    for data in read_chunks(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        if entry.WhichOneof("record_type") == "run":
            config |= {each.key: json.loads(each.value_json) for each in entry.run.config.update}
        if entry.WhichOneof("record_type") == "history":
            items = {"/".join(each.nested_key) or each.key: each.value_json for each in entry.history.item}
            history.append((int(items["_step"]), float(items["global_accuracy"])))
    assert config["local.lr"] == 0.05
    assert history == [(1, 0.1), (2, 0.2)]


def read_chunks(data: bytes) -> Iterator[bytes]:
    """Yield the records of a W&B file: after 7 bytes a log of LevelDB, in blocks of 32 KiB."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


class Recorder:
    """A tracker that fails until it is told to answer."""

    def __init__(self) -> None:
        self.calls, self.answers = list[Any](), threading.Event()
        self.files: Mapping[str, bytes] = {}

    def log_round(self, round: int, figures: Mapping[str, float]) -> None:
        if not self.answers.is_set():
            raise ConnectionError("no answer")
        self.calls.append(round)

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        self.calls.append(state)
        self.files = files


def test_a_tracker_that_comes_back_has_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
    recorder, warnings = Recorder(), list[str]()
    tracker = BackgroundTracker("board", lambda: recorder, warnings.append)
    for number in (1, 2, 3):
        tracker.log_round(record(number))
    recorder.answers.set()
    tracker.end("FINISHED", {})
    assert recorder.calls == [1, 2, 3, "FINISHED"]
    assert len(warnings) <= 1


def test_a_tracker_that_is_away_is_not_asked_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 600.0)
    recorder, attempts = Recorder(), list[None]()

    def open_board() -> Tracker:
        attempts.append(None)
        if not recorder.answers.is_set():
            raise ConnectionError("no route")
        return recorder

    tracker = BackgroundTracker("board", open_board, lambda text: None)
    for number in (1, 2, 3):
        tracker.log_round(record(number))
        while not attempts or not tracker._wake._waiters:
            time.sleep(0.001)  # until its thread waits again
    assert len(attempts) == 1
    recorder.answers.set()
    tracker.end("FINISHED", {})
    assert recorder.calls == [1, 2, 3, "FINISHED"]
    assert len(attempts) == 2


def test_a_tracker_that_is_away_costs_two_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(background, "END_SECONDS", 0.2)
    warnings = list[str]()

    def fail() -> Tracker:
        raise ConnectionError("no route")

    tracker = BackgroundTracker("board", fail, warnings.append)
    tracker.log_round(record(1))
    tracker.end("FINISHED", {})
    assert warnings == [
        "board fails, and the run goes on: ConnectionError: no route",
        "board does not answer: its last rounds or files are missing there",
    ]


def test_callers_of_a_service_see_no_address_of_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "END_SECONDS", 0.1)
    warnings = list[str]()

    def fail() -> Tracker:
        raise ConnectionError("no route to http://ada:secret@tracker")

    tracker = BackgroundTracker("board", fail, warnings.append, show_errors=False)
    tracker.log_round(record(1))
    tracker.end("FINISHED", {})
    assert warnings[0] == "board fails, and the run goes on: ConnectionError"


def test_a_tracker_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "END_SECONDS", -0.9)
    gate, warnings = threading.Event(), list[str]()

    def hang() -> Tracker:
        gate.wait(60)
        return Recorder()

    tracker = BackgroundTracker("board", hang, warnings.append)
    tracker.log_round(record(1))
    tracker.end("FINISHED", {})
    gate.set()
    assert warnings == ["board does not answer: its last rounds or files are missing there"]


def test_a_tracker_that_is_done_when_the_run_ends_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, warnings, may_go_on = Recorder(), list[str](), threading.Event()
    recorder.answers.set()
    log_round = recorder.log_round
    monkeypatch.setattr(recorder, "log_round", lambda *given: (may_go_on.wait(60), log_round(*given)))
    tracker = BackgroundTracker("board", lambda: recorder, warnings.append)
    tracker.log_round(record(1))
    add = tracker._add

    def add_late(call: Callable[[Tracker], None]) -> None:
        may_go_on.set()
        time.sleep(0.1)  # the thread ends the round now, and looks at what is left
        add(call)

    monkeypatch.setattr(tracker, "_add", add_late)
    tracker.end("FINISHED", {})
    assert (recorder.calls, warnings) == ([1, "FINISHED"], [])


def test_what_cannot_begin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="tensorboard, mlflow, wandb"):
        check_trackers(["aim"])
    monkeypatch.setattr("jobs.tracking.trackers.find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(SettingsError, match=rf"\.\[{name}\]"):
            check_trackers([name])
    check_trackers([])


def test_tensorboard_needs_a_folder() -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(SettingsError, match="--out DIR"):
        check_trackers(["tensorboard"], has_folder=False)


def test_no_library_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, jobs.tracking.trackers; print({'wandb', 'mlflow', 'torch'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("field", ["track", "trackers", "tracking"])
def test_a_spec_names_no_tracker(field: str) -> None:
    with pytest.raises(SpecError, match=field):
        parse_spec({"algorithm": "fedavg", field: ["mlflow"]})
    assert "track" not in json.dumps(json_schema())
    assert Settings.from_env({"FEDSIM_TRACK": "mlflow, wandb"}).track == ("mlflow", "wandb")
    assert Settings.from_env({"FEDSIM_TRACK": "mlflow"}).public_environment()["FEDSIM_TRACK"] == "mlflow"


def test_a_job_is_tracked_under_its_id_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, runs = Recorder(), list[TrackedRun]()
    recorder.answers.set()

    def make_opener(name: str, run: TrackedRun) -> Callable[[], Tracker]:
        runs.append(run)
        return lambda: recorder

    monkeypatch.setattr("jobs.tracking.trackers._make_opener", make_opener)
    monkeypatch.setattr("jobs.tracking.trackers.find_spec", lambda name: json.__spec__)
    settings = Settings(home=tmp_path, track=("mlflow",))
    with JobStore.open(settings.database_url) as store:
        job = store.create(SPEC)[0]
        watcher = JobWatcher(store, job.id, "mine")
        arguments: Any = (job, SPEC, settings, None, StoreLedger(store, job.id, "mine"), watcher)
        listener = JobListener(*arguments)
        with listener.track():
            listener.on_round(record(1))
            save_model(settings, job.id, {"w": np.zeros(1)})
        assert [run.id for run in runs] == [job.id]
        assert recorder.calls == [1, "FINISHED"]
        assert set(recorder.files) == {"spec.yaml", "model.safetensors"}
        # Another runner goes on: the tracker may have missed rounds of the first one.
        recorder.calls.clear()
        ledger = StoreLedger(store, job.id, "mine")
        ledger.mark_running()
        ledger.add(record(1))
        listener = JobListener(*arguments[:4], ledger, watcher)
        with listener.track():
            listener.on_round(record(2))
        assert recorder.calls == [1, 2, "FINISHED"]
        watcher.close()


def test_a_job_whose_tracker_cannot_begin_runs_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.tracking.trackers.find_spec", lambda name: None)
    settings = Settings(home=tmp_path, track=("mlflow",))
    with JobStore.open(settings.database_url) as store:
        job = store.create(SPEC)[0]
        watcher = JobWatcher(store, job.id, "mine")
        arguments: Any = (job, SPEC, settings, None, StoreLedger(store, job.id, "mine"), watcher)
        with pytest.raises(RuntimeError, match="of the run"), JobListener(*arguments).track():
            raise RuntimeError("of the run")
        watcher.close()
        texts = [str(event) for event in store.events(job.id) if event.type == "warning"]
    assert len(texts) == 1
    assert ".[mlflow]" in texts[0]


@pytest.mark.slow
def test_the_command_tracks_a_run_and_its_resumption(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from typer.testing import CliRunner

    from api.cli.main import app

    sets = ["--set=rounds=2", "--set=local.epochs=1", "--set=clients.total=6"]
    words = ["run", "demo", *sets, "--out", str(tmp_path), "--track", "tensorboard", "--debug"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert (tmp_path / "tracking-id").read_text()
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [each.step for each in found.Scalars("global_accuracy")] == [1, 2]
