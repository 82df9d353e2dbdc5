"""Runs that lose their coordinator, or their place for checkpoints, on a real Ray."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from safetensors import safe_open
from safetensors.torch import load_file

from fedsim.base.tree import wrap_array
from fedsim.checkpoints.experiment_run import Status
from fedsim.data import Normalise
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import (
    CheckpointError,
    CoordinatorLost,
    FedsimError,
    NoCapacityNow,
    NotReproduced,
    SpecError,
)
from fedsim.models import make_net
from jobs.plan.planner import plan
from jobs.run.checkpoint_policy import make_checkpoint_policy
from jobs.run.execute import ListLedger
from jobs.run.listener import RunListener
from jobs.run.restarts import RunWithRestarts
from jobs.run.run_attempts import RunAttempt, translate_coordinator_error
from jobs.run.run_result import FinalModel
from jobs.run.runner import run_job
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.job_store import JobStore
from jobs.store.records import RoundRecord
from jobs.store.states import FailureReason, JobState
from tests.api.service import a_round
from tests.fedsim.altered import alter_a_memory

pytestmark = pytest.mark.usefixtures("ray_cluster")

SPEC: dict[str, Any] = {
    "algorithm": "scaffold",
    "rounds": 9,
    "clients": {"total": 8, "fraction": 0.5},
    "model": "logistic",
    "local": {"steps": 2},
    "checkpoint": {"every": 2},
    "resources": {"workers": 1, "cpus_per_worker": 0.5},
}


def driven(
    spec: JobSpec,
    settings: Settings,
    url: str | None,
    kill_at: int = 0,
    records: list[RoundRecord] | None = None,
    resume: bool = False,
) -> tuple[list[RoundRecord], list[FedsimError], dict[str, Any]]:
    """A run whose coordinator is killed after a round; its records, its losses and its model."""
    attempts: list[RunAttempt] = []
    losses: list[FedsimError] = []

    class Killer(RunListener):
        def on_attempt(self, attempt: RunAttempt) -> None:
            attempts.append(attempt)

        def on_round(self, record: RoundRecord) -> None:
            if record.round == kill_at and not losses:
                os.kill(ray.get(attempts[-1].coordinator.get_pid.remote()), signal.SIGKILL)

        def may_restart(self, error: FedsimError) -> bool:
            losses.append(error)
            return len(losses) <= spec.faults.max_restarts

    ledger = ListLedger([] if records is None else records)
    made = RunWithRestarts(
        resolve_spec(spec, settings),
        spec,
        make_checkpoint_policy(spec, url, resume=resume),
        ledger,
        Killer(),
    )
    return ledger.records, losses, made.run_to_end()


@pytest.mark.slow
def test_what_only_the_data_tells_has_the_paths_of_the_spec(tmp_path: Path) -> None:
    """How many examples of a class are drawn, the run is the first to know."""
    partition = {"kind": "pathological", "classes": 1}
    spec = parse_spec({**SPEC, "data": {"dataset": "synthetic", "partition": partition}})
    with pytest.raises(SpecError) as caught:
        driven(spec, Settings(home=tmp_path), None)
    (fault,) = caught.value.errors
    assert (fault.path, fault.value) == ("data.partition.classes", 1)
    assert "8 clients of 1 classes cannot hold all 10 classes" in fault.message


def expected(spec: JobSpec, settings: Settings) -> list[str]:
    experiment = resolve_spec(spec, settings)
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    return [result.digest for result in simulate(experiment.algorithm, population, pool)]


@pytest.mark.slow
def test_the_server_takes_its_share_of_a_gpu_and_leaves_the_rest_to_the_workers(tmp_path: Path) -> None:
    asked = {"workers": "auto", "cpus_per_worker": 0.5, "gpus_per_worker": 0.5, "server_gpus": 0.5}
    spec, settings = parse_spec({**SPEC, "rounds": 1, "resources": asked}), Settings(tmp_path / "home")
    drive = RunAttempt(resolve_spec(spec, settings), spec)
    try:
        steps = list(drive)
        (record,) = [step for step in steps if isinstance(step, RoundRecord)]
        assert record.engine.actors == 3
        named = "cpu in the place of a logical GPU"
        assert record.engine.model_extra == {"device": named, "server_device": named}
        said = [step.text for step in steps if isinstance(step, Status) and "warning" in step.text]
        assert ["clients train" in text for text in said] == [True, False]
        # The coordinator's half is not given back before it ends.
        assert ray.available_resources().get("GPU", 0) <= 1.5
    finally:
        drive.close()


def test_a_server_whose_share_others_hold_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.server_placement.PLACEMENT_SECONDS", 0.5)
    asked = {"workers": 1, "cpus_per_worker": 0.5, "server_gpus": 0.5}
    spec, settings = parse_spec({**SPEC, "rounds": 1, "resources": asked}), Settings(tmp_path / "home")
    experiment, gpus = resolve_spec(spec, settings), ray.cluster_resources()["GPU"]
    held = placement_group([{"GPU": 1}] * int(gpus))
    try:
        assert held.wait(60), f"others hold a part of the room: {ray.available_resources()} is free"
        drive = RunAttempt(experiment, spec)
        with pytest.raises(NoCapacityNow, match=r"the server's 0.5 GPU .* did not come free within 0.5 s"):
            next(iter(drive))
        drive.close()
        measured = plan(spec, settings, seconds=0.5)
        assert any("server's 0.5 GPU" in note for note in measured.notes)
    finally:
        remove_placement_group(held)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("GPU", 0) < gpus:
        assert time.monotonic() < deadline, "what was waited for is still asked for"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["with-checkpoints", "without"])
def test_a_run_survives_its_coordinator(tmp_path: Path, kept: bool) -> None:
    spec, settings, free = parse_spec(SPEC), Settings(tmp_path / "home"), ray.available_resources()["CPU"]
    records, losses, model = driven(spec, settings, str(tmp_path / "kept") if kept else None, kill_at=5)
    assert [record.round for record in records] == list(range(1, 10))
    assert [record.digest for record in records] == expected(spec, settings)
    assert [type(error) for error in losses] == [CoordinatorLost]
    assert model.keys() == {"head.weight", "head.bias"}
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < free:
        assert time.monotonic() < deadline, "the lost coordinator's actors still hold their place"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_is_lost_once_too_often(tmp_path: Path) -> None:
    spec = parse_spec({**SPEC, "faults": {"max_restarts": 0}})
    with pytest.raises(CoordinatorLost):
        driven(spec, Settings(tmp_path), None, kill_at=2)


class Told(Exception):
    """A drive was made."""


@pytest.mark.parametrize(("resume", "stack_sizes"), [(True, {2: 1, 3: 1, 4: 1, 5: 1}), (False, {})])
def test_a_drive_is_told_the_stack_sizes_of_the_rounds_that_may_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool, stack_sizes: dict[int, int]
) -> None:
    """After five rounds, with a checkpoint after every second one: of all after the older of the two kept."""
    given, seconds = [], []

    def made(*arguments: Any, **options: Any) -> RunAttempt:
        given.append(arguments[2])
        seconds.append(options["known_seconds"])
        raise Told

    monkeypatch.setattr("jobs.run.run_attempts.RunAttempt", made)
    spec, settings = parse_spec(SPEC), Settings(tmp_path / "home")
    records = [a_round(n + 1) for n in range(5)]
    with pytest.raises(Told):
        driven(spec, settings, str(tmp_path / "c"), records=records, resume=resume)
    assert (given[0].known_rounds, given[0].stack_sizes) == (5, stack_sizes)
    assert seconds == [{number: records[number - 1].seconds.total for number in stack_sizes}]
    # Without checkpoints, all rounds run again.
    with pytest.raises(Told):
        driven(spec, settings, None, records=records)
    assert seconds[1].keys() == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_a_round_that_comes_out_differently_ends_the_run(tmp_path: Path) -> None:
    spec, settings = parse_spec({**SPEC, "rounds": 2}), Settings(tmp_path)
    known = [a_round(1), a_round(2)]
    wrong = [
        known[0].model_copy(update={"digest": expected(spec, settings)[0]}),
        known[1].model_copy(update={"digest": "0" * 64}),
    ]
    with pytest.raises(NotReproduced, match=r"round 2 came out differently when it ran again: .* 0000"):
        driven(spec, settings, None, records=wrong)


@pytest.mark.slow
def test_a_run_does_not_go_on_from_client_states_that_are_not_those_of_its_records(tmp_path: Path) -> None:
    spec, settings = parse_spec({**SPEC, "rounds": 2}), Settings(tmp_path / "home")
    folder = tmp_path / "kept"
    records, _, _ = driven(spec, settings, str(folder))
    alter_a_memory(folder)
    with pytest.raises(NotReproduced, match=r"round 2 came out differently .* has the memory_digest"):
        driven(spec, settings, str(folder), records=records, resume=True)


@pytest.mark.parametrize(
    "storage", ["/proc/nothing", pytest.param("nosuch://bucket", marks=pytest.mark.slow)]
)
def test_a_job_whose_checkpoints_cannot_be_written_fails_before_round_1(tmp_path: Path, storage: str) -> None:
    settings = Settings(tmp_path / "home", storage=storage)
    with pytest.raises(CheckpointError, match=storage):
        driven(parse_spec(SPEC), settings, settings.checkpoint_url("abc"))
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(parse_spec(SPEC))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        assert run_job(job_id, settings) is JobState.FAILED
        job = store.get(job_id)
        assert (job.reason, job.rounds_done) == (FailureReason.STORAGE_FAILED, 0)
        assert storage in job.message


def test_a_runner_that_was_given_up_leaves_the_job_alone(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "home")
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(parse_spec({**SPEC, "rounds": 100_000}))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        store.set_ray_job_id(job_id, "another")
        assert run_job(job_id, settings, "first") in (JobState.STARTING, JobState.RUNNING)
        assert store.get(job_id).heartbeat_at is None


@pytest.mark.slow
def test_a_job_leaves_the_model_that_validation_chose(tmp_path: Path) -> None:
    """KDIA's student or teacher after one of the rounds: it does on the test set what the record says."""
    light = {"name": "kdia", "generator_epochs": 1, "generator_batches": 2, "generator_batch_size": 8}
    spec = parse_spec({**SPEC, "algorithm": light, "rounds": 4, "evaluation": {"validation": 0.1}})
    settings, final = Settings(tmp_path / "home"), FinalModel()
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(spec)[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        assert run_job(job_id, settings) is JobState.SUCCEEDED
        for record in store.rounds(job_id):
            final.add(record)
    said = final.document()["best_by_validation"]
    path = Path(settings.artifact_url(job_id)) / "chosen.safetensors"
    with safe_open(path, "pt") as file:
        notes, params = file.metadata(), load_file(path)
    assert (notes["round"], notes["model"]) == (str(said["round"]), said["model"])
    data = resolve_spec(spec, settings).load_population().dataset
    # What one needs to use it stands in the file.
    net, normalise = make_net(**json.loads(notes["net"])), Normalise(**json.loads(notes["normalise"]))
    found = net(params, normalise(wrap_array(data.test.x))).argmax(-1).numpy()
    assert float((found == data.test.y).mean()) == pytest.approx(said["accuracy"])


@pytest.mark.slow
def test_a_job_that_stops_says_why_and_stops_after_the_same_round_if_it_is_lost(tmp_path: Path) -> None:
    stop = {"metric": "train_loss", "patience": 2, "max_seconds": 1e6}
    changes = {"algorithm": "fedavg", "rounds": 40, "local": {"steps": 1, "lr": 0.5}, "stop": stop}
    spec, settings = parse_spec({**SPEC, **changes}), Settings(tmp_path / "home")
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(spec)[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        assert run_job(job_id, settings) is JobState.SUCCEEDED
        job, records = store.get(job_id), store.rounds(job_id)
    end = records[-1].end
    assert end is not None
    assert 3 <= len(records) < 40
    assert job.message == end.message
    assert job.last_metrics["train_loss"] == records[end.result_round - 1].metrics["train_loss"]
    with safe_open(Path(settings.artifact_url(job_id)) / "model.safetensors", "np") as file:
        assert file.metadata()["round"] == str(end.result_round)
    lost, losses, model = driven(spec, settings, str(tmp_path / "kept"), kill_at=len(records) - 1)
    assert len(losses) == 1
    assert [record.digest for record in lost] == [record.digest for record in records]
    assert lost[-1].end == end
    weights = load_file(Path(settings.artifact_url(job_id)) / "model.safetensors")
    assert {key: value.tolist() for key, value in model.items()} == {
        key: value.tolist() for key, value in weights.items()
    }


@pytest.mark.slow
def test_a_job_whose_room_is_held_waits_for_it(tmp_path: Path) -> None:
    settings, cpus = Settings(tmp_path / "home"), ray.cluster_resources()["CPU"]
    held = placement_group([{"CPU": cpus}])
    with JobStore.open(settings.database_url) as store, ThreadPoolExecutor(1) as threads:
        job_id = store.create(parse_spec({**SPEC, "rounds": 1}))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        try:
            assert held.wait(60), f"others hold a part of the room: {ray.available_resources()} is free"
            ended = threads.submit(run_job, job_id, settings)
            deadline = time.monotonic() + 90
            while not any(event.type == "warning" for event in store.events(job_id)):
                assert time.monotonic() < deadline
                assert not ended.done()
                time.sleep(0.1)
            assert store.get(job_id).state is JobState.STARTING
        finally:
            remove_placement_group(held)
        assert ended.result() is JobState.SUCCEEDED


def test_a_lost_raylet_is_a_lost_coordinator_and_a_full_disk_is_not() -> None:
    """Ray's own OSError has no number; the run goes on from its checkpoint after it."""
    assert isinstance(translate_coordinator_error(OSError("Broken pipe")), CoordinatorLost)
    for own in (
        OSError(errno.EPIPE, "Broken pipe"),
        FileNotFoundError("raylet.csv"),
        OSError("no such file"),
    ):
        assert translate_coordinator_error(own) is own
