"""Jobs side by side: as many as the CPUs and GPUs of the cluster hold, in the order of the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.queue import job_size
from jobs.queue.job_size import fits_beside, is_short_job, measure_job
from jobs.run.job_cluster import IN_PROCESS_VARIABLE
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.sections.run_fields import JobSize
from jobs.store.job_store import JobStore
from jobs.store.states import JobState
from tests.databases import service_database
from tests.jobs.desk import Desk

LONG: dict[str, Any] = {"rounds": 100_000}


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    url = service_database(tmp_path)
    with JobStore.open(url) as store:
        yield Desk(store, url, tmp_path / "home", max_running=None)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"rounds": 2}, JobSize(1, 0)),
        (LONG, JobSize(4, 2)),
        ({**LONG, "resources": {"workers": 1}}, JobSize(1, 0)),
        ({**LONG, "resources": {"workers": 3, "cpus_per_worker": 0.5}}, JobSize(1.5, 0)),
        ({**LONG, "resources": {"workers": 1, "cpus_per_worker": 0.05}}, JobSize(1, 0)),
        ({"resources": {"workers": 3, "gpus_per_worker": 0.25, "server_gpus": 0.25}}, JobSize(3, 1)),
    ],
)
def test_a_job_takes_what_its_spec_asks_for(desk: Any, spec: dict[str, Any], size: JobSize) -> None:
    job = desk.store.get(desk.job(**spec))
    assert measure_job(job, desk.settings, JobSize(cpus=4, gpus=2)) == size


def test_jobs_of_one_worker_run_side_by_side(desk: Any) -> None:
    one = {**LONG, "resources": {"workers": 1}}
    jobs = [desk.job(name, **one) for name in "abc"]
    desk.look()
    assert [desk.state(job) for job in jobs] == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]
    waiting = desk.store.get(jobs[2]).waiting
    assert waiting == f"2 jobs run and leave too few CPUs or GPUs: {jobs[0]} (a), {jobs[1]} (b)"


def test_a_large_job_waits_for_the_whole_cluster_and_holds_its_place(desk: Any) -> None:
    small, large, last = desk.job("small", rounds=2), desk.job("large", **LONG), desk.job("last", rounds=2)
    desk.look()
    assert [desk.state(job) for job in (small, large, last)] == [
        JobState.STARTING,
        JobState.QUEUED,
        JobState.QUEUED,
    ]
    assert "1 job runs and leaves too few CPUs or GPUs" in str(desk.store.get(large).waiting)
    desk.store.change_state(small, JobState.STARTING, JobState.RUNNING)
    desk.store.change_state(small, JobState.RUNNING, JobState.SUCCEEDED)
    desk.look()
    assert [desk.state(job) for job in (large, last)] == [JobState.STARTING, JobState.QUEUED]


def test_a_job_that_is_larger_than_it_looks_runs_alone(desk: Any) -> None:
    assert not fits_beside(
        desk.store.get(desk.job(**LONG)), [desk.store.get(desk.job(rounds=2))], desk.settings, ()
    )


def test_the_environment_of_a_short_job_says_so(desk: Any) -> None:
    short, long = desk.job(rounds=2), desk.job(**LONG, resources={"workers": 1})
    desk.look()
    said = {key: IN_PROCESS_VARIABLE in given for key, given in desk.cluster.environments.items()}
    assert said == {f"fedsim-{short}-0": True, f"fedsim-{long}-0": False}


def test_no_job_of_another_cluster_is_short(tmp_path: Path) -> None:
    url = service_database(tmp_path)
    with JobStore.open(url) as store:
        job, _ = store.create(parse_spec({"algorithm": "fedavg", "rounds": 2}))
        assert is_short_job(job, Settings(tmp_path))
        assert not is_short_job(job, Settings(tmp_path, ray_address="auto"))


def test_a_job_whose_size_cannot_be_told_does_not_stop_the_queue(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        raise ValueError("takes numbers, but this data has tokens")

    monkeypatch.setattr(job_size, "is_short_unread", fail)
    job = desk.job(name="unclear", rounds=2)
    desk.look()
    assert desk.state(job) is JobState.STARTING
    assert not is_short_job(desk.store.get(job), desk.settings)
