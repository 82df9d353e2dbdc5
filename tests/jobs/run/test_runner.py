"""What a runner writes down of a job that failed, and that it leaves one alone that is over."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load
from sqlalchemy.exc import OperationalError

from fedsim.errors import (
    CheckpointError,
    ClientFailed,
    CohortFailed,
    CoordinatorLost,
    DataError,
    DoesNotFit,
    MethodFailed,
    NodeLost,
    ObjectLost,
    OutOfMemory,
    PoolFailed,
    StoreError,
    StoreUnusable,
)
from jobs.run import runner
from jobs.run.artifacts import MODEL, open_artifact
from jobs.run.job_cluster import EXIT_NO_ANSWER, EXIT_STORE_UNUSABLE
from jobs.run.job_watcher import JobWatcher
from jobs.run.runner import _write_failure, main, run_job
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.states import ACTIVE, FailureReason, JobState


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClientFailed(3, "train", "KeyError: 'w'"), FailureReason.CLIENT_FAILED),
        (CohortFailed("all 10 clients of round 1 failed"), FailureReason.CLIENT_FAILED),
        (
            OutOfMemory("client 3 ran out of memory in train", "use fewer workers"),
            FailureReason.OUT_OF_MEMORY,
        ),
        (MemoryError("no more"), FailureReason.OUT_OF_MEMORY),
        (NodeLost("10.0.0.3", 1, "its heartbeat stopped"), FailureReason.NODE_LOST),
        (ObjectLost("an object of the run was lost"), FailureReason.NODE_LOST),
        (CoordinatorLost("the coordinator, or an object that it needs, was lost"), FailureReason.NODE_LOST),
        # Their node lives: what crashed is fedsim, a method, or Ray.
        (PoolFailed("the actor died 4 times"), FailureReason.INTERNAL),
        (DoesNotFit("4 x 0.3 GPU asked, 1 GPU here"), FailureReason.DOES_NOT_FIT),
        (DataError("truncated"), FailureReason.BAD_DATA),
        (MethodFailed("FedAvg", "aggregate", "KeyError: 'w'", "line 7"), FailureReason.INTERNAL),
        (CheckpointError("round 3 cannot be written"), FailureReason.STORAGE_FAILED),
        (StoreUnusable("the store's disk is full"), FailureReason.STORAGE_FAILED),
        (KeyError("odd"), FailureReason.INTERNAL),
    ],
)
def test_every_failure_has_its_reason_and_its_words(
    error: Exception, reason: FailureReason, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        _write_failure(store, job_id, error)
        job = store.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, reason)
    assert job.message is not None
    assert str(error) in job.message
    assert getattr(error, "trace", "") in caplog.text


class Closed:
    """A drive that notes when it is closed."""

    def __init__(self) -> None:
        self.times = 0

    def close(self) -> None:
        self.times += 1


@pytest.mark.parametrize("end", ["failed", "cancelled", "deleted", "another's", "resumed"])
def test_a_run_whose_job_is_over_or_anothers_is_stopped(end: str, tmp_path: Path) -> None:
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.start_next_job(1)
        store.set_ray_job_id(job_id, "mine")
        watch, drive = JobWatcher(store, job_id, "mine"), Closed()
        watch.close()
        watch.watch_attempt(drive)  # type: ignore[arg-type]
        watch.check_store()
        assert drive.times == 0
        if end == "another's":
            store.set_ray_job_id(job_id, "another")
        elif end == "cancelled":
            store.request_cancel(job_id)
            store.change_state(job_id, JobState.CANCELLING, JobState.CANCELLED)
        else:
            store.change_state(job_id, ACTIVE - {JobState.CANCELLING}, JobState.FAILED)
        if end == "deleted":
            store.delete(job_id)
        if end == "resumed":
            store.resume(job_id)
        for _ in range(2):
            watch.check_store()
        assert watch.is_stopped
        assert drive.times == 1


def test_a_job_that_is_over_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_run_rounds", lambda *_: pytest.fail("it was begun"))
    settings = Settings(tmp_path / "home")
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        assert run_job(job_id, settings) is JobState.QUEUED
        store.request_cancel(job_id)
        assert run_job(job_id, settings) is JobState.CANCELLED
        assert store.get(job_id).heartbeat_at is None


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, str]:
    """A job that is STARTING, and the settings that `main` will take."""
    settings = Settings(tmp_path / "home")
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.start_next_job(1)
    settings.job_dir(job_id).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(runner, "read_runner_settings", lambda _: settings)
    monkeypatch.setattr(runner.os, "umask", lambda _: 0)
    return settings, job_id


def test_a_runner_whose_store_is_full_says_so_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreUnusable("the store's disk is full")

    settings, job_id = begun(tmp_path, monkeypatch)
    monkeypatch.setattr(runner, "_run_rounds", lambda *_, **__: full())
    monkeypatch.setattr(JobStore, "record_heartbeat", full)
    monkeypatch.setattr(JobStore, "change_state", full)
    assert main([job_id]) == EXIT_STORE_UNUSABLE
    log = settings.log_path(job_id).read_text()
    assert "failed: the store's disk is full" in log
    assert "the end of the job could not be written to the store: the store's disk is full" in log


@pytest.mark.parametrize("when", ["the store is opened", "a round is written", "the failure is written"])
def test_a_runner_whose_store_falls_silent_gives_up_and_fails_no_job(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back right after a round was given up: even then the job has not failed."""
    settings, job_id = begun(tmp_path, monkeypatch)

    def silent(*_: object, **__: object) -> None:
        raise OperationalError("UPDATE jobs SET ...", {"id": job_id}, Exception("the connection is closed"))

    def closed(_: str) -> None:
        try:
            silent()
        except OperationalError as error:
            raise StoreError("cannot open the store") from error

    def broken(*_: object) -> None:
        raise DataError("truncated")

    with monkeypatch.context() as away:
        away.setattr(runner, "retry_store_call", lambda call: call())
        away.setattr(runner, "_run_rounds", broken if when == "the failure is written" else silent)
        if when == "the store is opened":
            away.setattr(JobStore, "open", closed)
        elif when == "the failure is written":
            away.setattr(JobStore, "change_state", silent)
        assert main([job_id]) == EXIT_NO_ANSWER
    log = settings.log_path(job_id).read_text()
    assert log.endswith("does not answer, and this process ends: the connection is closed\n")
    assert "UPDATE" not in log
    with JobStore.open(settings.database_url) as store:
        job = store.get(job_id)
    assert (job.state, job.message) == (JobState.STARTING, None)


def test_the_log_has_an_error_with_the_name_of_a_file_that_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job_id = begun(tmp_path, monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise ClientFailed(3, "train", "OSError: caf\udce9.png", "the trace of caf\udce9.png")

    monkeypatch.setattr(runner, "_run_rounds", fail)
    assert main([job_id]) == 1
    log = settings.log_path(job_id).read_text("utf-8")
    assert "failed: client 3 failed in train: OSError: caf\\udce9.png" in log
    assert "the trace of caf\\udce9.png" in log


@pytest.mark.parametrize("what", ["get", "record_heartbeat"])
def test_a_disk_that_is_full_ends_no_watch(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even where reading takes room, as SQLite's index does; a wish that can be read is obeyed."""

    def full(*_: object) -> None:
        raise StoreUnusable("the store's disk is full")

    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.start_next_job(1)
        store.request_cancel(job_id)
        watch, drive = JobWatcher(store, job_id), Closed()
        watch.close()
        watch.watch_attempt(drive)  # type: ignore[arg-type]
        monkeypatch.setattr(store, what, full)
        watch.check_store()
    obeyed = what == "record_heartbeat"
    assert (watch.cancelled, watch.must_stop, drive.times) == (obeyed, False, obeyed)
    assert caplog.messages[0] == "the heartbeat could not be written: the store's disk is full"


@pytest.mark.slow
def test_a_finished_job_with_more_rounds_is_one_that_had_them_from_the_start(
    tmp_path: Path, ray_cluster: None
) -> None:
    settings = Settings(tmp_path / "home")
    plain: dict[str, Any] = {"algorithm": "scaffold", "model": "logistic", "resources": {"workers": 1}}
    with JobStore.open(settings.database_url) as store:

        def run(job_id: str) -> list[str]:
            store.start_next_job(1)
            assert run_job(job_id, settings) is JobState.SUCCEEDED
            return [record.digest for record in store.rounds(job_id)]

        short, long = (store.create(parse_spec({**plain, "rounds": n}))[0].id for n in (2, 4))
        first = run(short)
        job = store.resume(short, rounds=4)
        assert (job.state, job.rounds_total, job.spec["rounds"]) == (JobState.QUEUED, 4, 4)
        store.change_state(long, JobState.QUEUED, JobState.CANCELLED)
        again = run(short)
        store.resume(long)
        assert first == again[:2]
        assert again == run(long)
        weights = [load(b"".join(open_artifact(settings, each, MODEL)[1])) for each in (short, long)]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[1])
