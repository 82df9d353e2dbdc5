"""Dispatch on a real Ray, with a runner of a few lines whose part is told by the job's name."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fedsim.errors import RayUnavailable
from jobs.local_ray.embedded_ray import ensure_ray
from jobs.local_ray.keeper_files import read_addresses
from jobs.queue.dispatcher import Dispatcher
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.states import ACTIVE, FINAL, FailureReason, JobState
from tests.api.browser import until
from tests.databases import service_database

RUNNER = """
import json, os, signal, sys, time
from jobs.settings import Settings
from jobs.store.job_store import JobStore

settings, job_id = Settings.from_env(), sys.argv[1]
store = JobStore.open(settings.database_url)
with (settings.job_dir(job_id) / "starts").open("a") as file:
    file.write(json.dumps({"pid": os.getpid()} | dict(os.environ)) + "\\n")
part = store.get(job_id).name
if part == "crash":
    sys.exit("broken on purpose")
store.change_state(job_id, "STARTING", "RUNNING")
if part == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
for _ in range(100 if part == "long" else 5):
    if (settings.job_dir(job_id) / "enough").exists():
        break
    store.record_heartbeat(job_id)
    time.sleep(0.2)
    if store.get(job_id).state == "CANCELLING":
        (settings.job_dir(job_id) / "saw").touch()
        store.change_state(job_id, "CANCELLING", "CANCELLED")
        sys.exit()
store.change_state(job_id, "RUNNING", "SUCCEEDED")
"""


class Bench:
    """A store, the settings and the fake runner; makes dispatchers and ends them."""

    def __init__(self, settings, script):
        self.settings, self.script = settings, script
        self.store = JobStore.open(settings.database_url)
        self.dispatchers = []

    def dispatcher(self):
        made = Dispatcher(self.store, self.settings, command=[sys.executable, str(self.script)])
        self.dispatchers.append(made)
        made.start()
        return made

    def job(self, part, priority=0, max_restarts=3):
        spec = {"algorithm": "fedavg", "name": part, "faults": {"max_restarts": max_restarts}}
        return self.store.create(parse_spec(spec), priority=priority)[0].id

    def wait(self, job_id, states=FINAL, seconds=40.0):
        deadline = time.monotonic() + seconds
        while (job := self.store.get(job_id)).state not in states:
            assert job.state not in FINAL, job
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def starts(self, job_id):
        file = self.settings.job_dir(job_id) / "starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def close(self):
        try:
            for job in self.store.list(state={JobState.QUEUED, *ACTIVE}).jobs:
                self.store.request_cancel(job.id)
            for job in self.store.list(state=ACTIVE).jobs:
                self.wait(job.id)
        finally:
            for dispatcher in self.dispatchers:
                dispatcher.stop()
            self.store.close()


@pytest.fixture
def bench(ray_home, tmp_path):
    script = tmp_path / "fake_runner.py"
    script.write_text(RUNNER)
    made = Bench(Settings(ray_home, database_url=service_database(tmp_path), max_running=1), script)
    yield made
    made.close()


def test_jobs_run_by_priority_one_after_the_other(bench):
    low, first, high = bench.job("low"), bench.job("first", priority=1), bench.job("long", priority=9)
    dispatcher = bench.dispatcher()
    bench.wait(high, {JobState.RUNNING})
    until(lambda: dispatcher.find_obstacle() is None)
    holds = f"1 of at most 1 job runs: {high} (long)"
    until(lambda: bench.store.get(first).waiting == holds)
    until(lambda: bench.store.get(low).waiting == f"1 job before it in the queue; {holds}")
    (bench.settings.job_dir(high) / "enough").touch()
    jobs = [bench.wait(job_id) for job_id in (high, first, low)]
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 3
    assert jobs[0].finished_at <= jobs[1].submitted_at
    assert jobs[1].finished_at <= jobs[2].submitted_at
    (start,) = bench.starts(high)
    handed = Path(start["FEDSIM_SECRETS"])
    assert handed.stat().st_mode & 0o777 == 0o600
    assert json.loads(handed.read_text())["FEDSIM_DATABASE_URL"] == bench.settings.database_url
    assert bench.settings.database_url not in map(str, start.values())
    assert start["FEDSIM_RAY_ADDRESS"] == "auto"
    assert start["RAY_ADDRESS"] == ensure_ray(bench.settings).gcs
    assert jobs[0].submission_id == f"fedsim-{high}-0"


def test_a_runner_that_breaks_leaves_its_last_words(bench):
    job_id = bench.job("crash")
    bench.dispatcher()
    job = bench.wait(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.INTERNAL)
    assert "ended with exit code 1" in job.message
    assert "broken on purpose" in job.message
    log = bench.settings.log_path(job_id)  # written after the store
    until(lambda: log.exists() and "broken on purpose" in log.read_text())


@pytest.mark.slow
def test_a_killed_runner_is_started_again_as_often_as_may_be(bench):
    job_id = bench.job("long", max_restarts=1)
    bench.dispatcher()
    bench.wait(job_id, {JobState.RUNNING})
    os.kill(bench.starts(job_id)[0]["pid"], signal.SIGKILL)
    bench.wait(job_id, {JobState.STARTING})
    job = bench.wait(job_id, {JobState.RUNNING})
    assert (job.restarts, job.submission_id) == (1, f"fedsim-{job_id}-1")
    assert [start["FEDSIM_SUBMISSION"] for start in bench.starts(job_id)] == [
        f"fedsim-{job_id}-0",
        f"fedsim-{job_id}-1",
    ]
    assert "starting again: the job's process was killed" in bench.settings.log_path(job_id).read_text()
    os.kill(bench.starts(job_id)[1]["pid"], signal.SIGKILL)
    job = bench.wait(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.HEARTBEAT_LOST)
    assert "after 1 restart, the limit of faults.max_restarts" in job.message
    bench.store.resume(job_id)
    job = bench.wait(job_id, {JobState.RUNNING})
    assert (job.restarts, job.submission_id) == (0, f"fedsim-{job_id}-1-0")


class NoRay:
    """A Ray that takes every job and is another one the next time it is asked."""

    def __init__(self):
        self.taken = []

    def find(self, submission):
        return None

    def submit(self, submission, command, environment):
        self.taken.append(submission)


def test_a_job_that_kills_ray_while_it_starts_is_not_started_for_ever(tmp_path):
    from jobs.queue.reconciler import Reconciler

    settings, ray = Settings(tmp_path / "home"), NoRay()
    with JobStore.open(settings.database_url) as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        reconciler = Reconciler(store, settings, ["runner"])
        for _ in range(10):
            reconciler.reconcile_jobs(ray)
        assert ray.taken == [f"fedsim-{job_id}-{n}" for n in range(4)]
        job = store.get(job_id)
        assert (job.state, job.reason) == (JobState.FAILED, FailureReason.HEARTBEAT_LOST)
        assert job.message.startswith("the Ray cluster that ran this job is gone")
        assert "after 3 restarts, the limit of faults.max_restarts" in job.message


@pytest.mark.parametrize("part", ["long", pytest.param("stubborn", marks=pytest.mark.slow)])
def test_cancelling_ends_a_job_whether_it_helps_or_not(bench, part, monkeypatch):
    if part == "long":  # on a busy machine it may not see the request within six seconds
        monkeypatch.setattr("jobs.queue.reconciler.CANCEL_SECONDS", 60.0)
    job_id = bench.job(part)
    bench.dispatcher()
    bench.wait(job_id, {JobState.RUNNING})
    bench.store.request_cancel(job_id)
    assert bench.wait(job_id).state is JobState.CANCELLED
    assert (bench.settings.job_dir(job_id) / "saw").exists() is (part == "long")
    process = Path("/proc", str(bench.starts(job_id)[0]["pid"]))
    until(lambda: not process.exists())


def test_jobs_outlive_the_dispatcher_and_the_next_one_knows_them(bench):
    first, second = bench.job("long"), bench.job("short")
    bench.dispatcher()
    bench.wait(first, {JobState.RUNNING})
    bench.dispatchers[0].stop()
    assert bench.dispatchers[0].find_obstacle() is not None
    bench.store.request_cancel(first)
    assert bench.wait(first).state is JobState.CANCELLED
    bench.dispatcher()
    assert bench.wait(second).state is JobState.SUCCEEDED
    assert len(bench.starts(first)) == len(bench.starts(second)) == 1


def test_a_job_that_was_never_submitted_is_submitted(bench):
    """As after a crash between leaving the queue and the submission."""
    before, cancelled = bench.job("a"), bench.job("c")
    for job_id in (before, cancelled):
        bench.store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
    bench.store.request_cancel(cancelled)
    bench.dispatcher()
    assert bench.wait(before).state is JobState.SUCCEEDED
    assert bench.wait(cancelled).state is JobState.CANCELLED
    assert bench.starts(cancelled) == []


def test_two_submissions_are_one_run(bench):
    from jobs.queue.ray_jobs import RayJobs
    from jobs.queue.reconciler import Reconciler

    ray = RayJobs(ensure_ray(bench.settings))
    reconciler = Reconciler(bench.store, bench.settings, [sys.executable, str(bench.script)])
    job_id = bench.job("short")
    bench.store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
    for _ in range(2):
        reconciler.submit(ray, bench.store.get(job_id))
    assert bench.wait(job_id).state is JobState.SUCCEEDED
    assert len(bench.starts(job_id)) == 1
    assert ray.find("fedsim-never-0") is None


@pytest.mark.slow
def test_a_killed_ray_is_started_again_and_the_queue_goes_on(bench):
    lost, waiting = bench.job("long"), bench.job("short")
    bench.dispatcher()
    bench.wait(lost, {JobState.RUNNING})
    keeper = read_addresses(bench.settings.home).pid
    os.kill(keeper, signal.SIGKILL)
    bench.wait(lost, {JobState.STARTING}, seconds=180)
    assert bench.wait(lost, {JobState.RUNNING}, seconds=180).restarts == 1
    bench.store.request_cancel(lost)
    assert bench.wait(lost).state is JobState.CANCELLED
    assert bench.wait(waiting, seconds=180).state is JobState.SUCCEEDED
    assert read_addresses(bench.settings.home).pid != keeper


def test_without_ray_the_queue_says_so_and_waits(tmp_path):
    settings = Settings(tmp_path / "home", ray_address="http://127.0.0.1:9")
    with JobStore.open(settings.database_url) as store:
        job, _ = store.create(parse_spec({"algorithm": "fedavg"}))
        dispatcher = Dispatcher(store, settings)
        assert "not been started" in dispatcher.find_obstacle()
        dispatcher.start()
        try:
            until(lambda: "127.0.0.1:9" in (store.get(job.id).waiting or ""), seconds=40)
            until(lambda: "127.0.0.1:9" in dispatcher.find_obstacle())
            assert store.get(job.id).state is JobState.QUEUED
            store.request_cancel(job.id)
        finally:
            dispatcher.stop()


def test_ray_that_does_not_answer_is_unavailable():
    from jobs.local_ray.embedded_ray import RayAddress
    from jobs.queue.ray_jobs import RayJobs

    for address in ("http://127.0.0.1:9", "127.0.0.1:9"):
        with pytest.raises(RayUnavailable, match=r"127\.0\.0\.1:9"):
            RayJobs(RayAddress("", address, "token"))
