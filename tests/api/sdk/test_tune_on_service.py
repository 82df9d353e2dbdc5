"""A search whose trials are jobs of a service finds what a local search finds, and goes on from its jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedsim import FedSimClient
from fedsim.errors import SpecError
from jobs.run.runner import run_job
from jobs.store.states import JobState
from jobs.tune import service_trials
from jobs.tune.record import TRIALS
from jobs.tune.result import TuneResult
from jobs.tune.search import tune
from tests.api.service import RunningService

BASE: dict[str, Any] = {
    "name": "rates",
    "rounds": 4,
    "clients": {"total": 8, "fraction": 0.5},
    "data": {"dataset": "digits", "limit": 400},
    "local": {"steps": 2, "batch_size": 20, "lr": 0.1, "schedule": "cosine"},
    "algorithm": "fedavg",
    "evaluation": {"validation": 0.2},
    "checkpoint": {"every": 0},
}
RATES = [0.001, 0.01, 0.1]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_trials, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(service_trials, "LONGEST_PAUSE", 0.05)


@contextmanager
def cluster(service: RunningService, fails: float | None = None) -> Iterator[None]:
    """Run the queued jobs of a service one after another; those with the rate `fails` fail at once."""
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.wait(0.01):
            job = service.store.start_next_job(1)
            if job is None:
                continue
            if job.spec["local"]["lr"] == fails:
                service.store.change_state(job.id, JobState.STARTING, JobState.FAILED, message="no such rate")
            else:
                run_job(job.id, service.settings, in_process=True)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def search(out: Path, client: FedSimClient | None, service: RunningService, **options: Any) -> TuneResult:
    options = {"method": "grid", "first_rounds": 1, "reduction": 2, "on": client, **options}
    return tune(BASE, {"local.lr": RATES}, out=out, settings=service.settings, **options)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "job"} for line in lines]


def test_a_service_finds_what_a_local_search_finds(service: RunningService, tmp_path: Path) -> None:
    local = search(tmp_path / "local", None, service)
    with cluster(service), FedSimClient(service.url) as client:
        found = search(tmp_path / "out", client, service)
        assert read_trials(tmp_path / "out") == read_trials(tmp_path / "local")
        assert (found.best.digest, found.test) == (local.best.digest, local.test)
        jobs = {job.job.labels["trial"]: job.job for job in client.jobs(label=found.label)}
        # A promoted trial is the same job; the test set is touched by the last job alone.
        assert sorted(jobs) == ["0", "1", "2", "best"]
        done = {trial: job.rounds_done for trial, job in jobs.items()}
        assert done == {**{str(trial.number): trial.rounds for trial in found.trials}, "best": 4}
        assert [trial for trial, job in jobs.items() if "global_accuracy" in job.last_metrics] == ["best"]
        assert [jobs[str(trial.number)].id for trial in found.trials] == [trial.job for trial in found.trials]
        assert found.job == jobs["best"].id
        # The same search in another folder finds the jobs, and trains nothing.
        again = search(tmp_path / "again", client, service)
        assert [trial.job for trial in again.trials] == [trial.job for trial in found.trials]
        assert len(list(client.jobs(label=found.label))) == 4


def test_an_interrupted_search_goes_on_and_a_failed_job_is_a_failed_trial(
    service: RunningService, tmp_path: Path
) -> None:
    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    with cluster(service, fails=0.1), FedSimClient(service.url) as client:
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path, client, service, seed=1, processes=2, on_score=interrupt)
        found = search(tmp_path, client, service, seed=1, processes=2)
        assert found.best.values != {"local.lr": 0.1}
        (failed,) = [trial for trial in found.trials if trial.error]
        assert failed.error == f"job {failed.job} FAILED: no such rate"
        assert len(list(client.jobs(label=found.label))) == 4


def test_the_service_checks_the_ends_of_each_space(service: RunningService, tmp_path: Path) -> None:
    with FedSimClient(service.url) as client:
        client.check(BASE)
        with pytest.raises(SpecError, match="local"):
            client.check(BASE, set={"local.lr": -1})
        before = len(list(client.jobs()))
        options: dict[str, Any] = {"out": tmp_path / "out", "method": "grid", "on": client}
        with pytest.raises(SpecError) as error:
            tune(BASE, {"data.dataset": ["digits", "digit"]}, **options)
        assert [fault.path for fault in error.value.errors] == ["data.dataset.name"]
        assert not (tmp_path / "out").exists()
        assert len(list(client.jobs())) == before
