"""A store that was deleted: its jobs come back from their folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.cli.main import app
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.run.artifacts import save_model, save_spec
from jobs.run.recovery import recover_jobs
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.job_store import JobStore
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState

SPEC = {"algorithm": "fedavg", "name": "mine", "rounds": 3, "clients": {"total": 10, "fraction": 0.2}}


def run_rounds(settings: Settings, job: Job, rounds: int) -> list[dict[str, Any]]:
    """Leave what a runner leaves after at most so many rounds; return the records."""
    experiment = resolve_spec(parse_spec(job.spec), settings)
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    checkpoints = Checkpoints(settings.checkpoint_url(job.id))
    save_spec(settings, job)
    records = []
    for result in simulate(experiment.algorithm, population, pool, rounds=rounds, stop=experiment.stop):
        checkpoints.note_round(result)
        checkpoints.save(result, pool, job.rounds_total)
        records.append(result.record())
    return records


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    return Settings.from_env()


def test_jobs_come_back_with_their_rounds_and_go_on(settings: Settings) -> None:
    with JobStore.open(settings.database_url) as store:
        whole, part = (store.create(parse_spec(SPEC))[0] for _ in range(2))
        stopped = store.create(parse_spec({**SPEC, "stop": {"round": 1}}))[0]
    runs = ((whole, 3), (part, 2), (stopped, 3))
    known = {job.id: run_rounds(settings, job, rounds) for job, rounds in runs}
    assert len(known[stopped.id]) == 1
    for job in (whole, stopped):
        save_model(settings, job.id, {"w": np.zeros(1)})
    for file in settings.home.glob("fedsim.db*"):
        file.unlink()
    result = CliRunner().invoke(app, ["recover"])
    assert (result.exit_code, "recovered 3 jobs" in result.stderr) == (0, True)
    assert not settings.home.joinpath("fedsim.db").stat().st_mode & 0o077
    with JobStore.open(settings.database_url) as store:
        assert store.totals().wait_seconds == 0
        for job, state in (
            (whole, JobState.SUCCEEDED),
            (part, JobState.CANCELLED),
            (stopped, JobState.SUCCEEDED),
        ):
            back = store.get(job.id)
            assert (back.spec, back.state, back.rounds_done) == (job.spec, state, len(known[job.id]))
            assert abs((back.created_at - job.created_at).total_seconds()) < 0.1
            records = [RoundRecord.model_validate(record) for record in known[job.id]]
            assert list(store.rounds(job.id)) == records
            assert back.last_metrics == records[-1].metrics
        assert store.resume(part.id).state is JobState.QUEUED
        assert recover_jobs(settings, store, print) == []


def test_a_folder_that_cannot_be_read_is_named_and_keeps_no_other_back(settings: Settings) -> None:
    with JobStore.open(settings.database_url) as store:
        lost, wrong = (store.create(parse_spec(SPEC))[0] for _ in range(2))
        for job in (lost, wrong):
            save_spec(settings, job)
            store.request_cancel(job.id)
            store.delete(job.id)
        (settings.job_dir(wrong.id) / "spec.yaml").write_text("rounds: [")
        said = list[str]()
        assert recover_jobs(settings, store, said.append) == [lost.id]
        assert (store.get(lost.id).state, store.get(lost.id).rounds_done) == (JobState.CANCELLED, 0)
    (sentence,) = said
    assert wrong.id in sentence


def test_a_copy_of_a_folder_is_no_job(settings: Settings) -> None:
    with JobStore.open(settings.database_url) as store:
        job = store.create(parse_spec(SPEC))[0]
        for folder in (job.id, f"{job.id}bak", f"{job.id}0123456789", "bak", "copy"):
            save_spec(settings, job.model_copy(update={"id": folder}))
        store.request_cancel(job.id)
        store.delete(job.id)
        said = list[str]()
        assert recover_jobs(settings, store, said.append) == [job.id]
        assert [each.id for each in store.list().jobs] == [job.id]
    assert not said
