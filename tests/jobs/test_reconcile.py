"""The dispatcher's decisions, one look at a time, on a cluster that says what the test has it say."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from actors.resources import Node
from fedsim.errors import JobRefused, RayUnavailable
from jobs import room
from jobs.dispatch import Dispatcher
from jobs.handover import take
from jobs.ray_job import RayJob, ray_job_of
from jobs.reconcile import Reconciler
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.states import ACTIVE, FINAL, FailureReason, JobState
from jobs.waiting import EXPLAINED
from tests.thread_cluster import RUNS, ThreadCluster

ENDED = RayJob(ended=True, message="", exit_code=None)


class Scripted:
    """A cluster whose jobs are what the test says."""

    def __init__(self):
        self.jobs, self.environments, self.stopped, self.refuses = {}, {}, [], set()
        self.there, self.has = True, [Node("here", 2, 0)]

    def find(self, submission_id):
        if not self.there:
            raise RayUnavailable("Ray at 127.0.0.1 does not answer")
        return self.jobs.get(submission_id)

    def submit(self, submission_id, command, environment):
        if command[-1] in self.refuses:
            raise JobRefused(f"Ray does not take {submission_id}: no room in /tmp")
        self.jobs.setdefault(submission_id, RUNS)
        self.environments[submission_id] = environment

    def nodes(self):
        return self.has

    def stop(self, submission_id):
        self.stopped.append(submission_id)

    def log_tail(self, submission_id, lines=20):
        return "its last words"


class Desk:
    """A store, a cluster, and a dispatcher that looks when it is told to."""

    def __init__(self, store, url, home, **options):
        self.store, self.cluster = store, Scripted()
        self.settings = Settings(home, database_url=url, **options)
        self.dispatcher = Dispatcher(store, self.settings, command=["run"], connect=lambda: self.cluster)

    def look(self):
        self.dispatcher._look()

    def job(self, name="a", priority=0, **spec):
        return self.store.create(
            parse_spec({"algorithm": "fedavg", "name": name, **spec}), priority=priority
        )[0].id

    def state(self, job_id):
        return self.store.get(job_id).state

    def silent_for(self, job_id, seconds):
        self.store._set(job_id, heartbeat_at=datetime.now(UTC) - timedelta(seconds=seconds))


@pytest.fixture
def desk(store, url, tmp_path):
    return Desk(store, url, tmp_path / "home")


def later(monkeypatch, seconds):
    """Let so many seconds pass, for this process alone."""
    now = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: now)


def test_a_runner_that_hangs_is_ended_and_the_job_goes_on_in_another(desk, monkeypatch):
    job_id = desk.job()
    desk.look()
    first = ray_job_of(desk.store.get(job_id))
    assert desk.store.advance(job_id, JobState.STARTING, JobState.RUNNING, holder=first)
    desk.silent_for(job_id, 60)
    desk.look()
    assert desk.cluster.stopped == []
    desk.silent_for(job_id, 100)
    desk.look()
    assert desk.cluster.stopped == []
    later(monkeypatch, 6)
    desk.look()
    desk.look()
    assert desk.cluster.stopped == [first]
    assert "shown no life for 90 s" in desk.settings.log_path(job_id).read_text()
    desk.cluster.jobs[first] = ENDED
    desk.look()
    job = desk.store.get(job_id)
    assert (job.state, job.restarts, job.submission_id) == (JobState.STARTING, 1, f"fedsim-{job_id}-1")
    # The one that hung comes to itself, and finds that the job is not its own any more.
    for target in (JobState.RUNNING, JobState.FAILED, JobState.CANCELLING):
        assert not desk.store.advance(job_id, JobState.STARTING, target, holder=first)
    assert not desk.store.restart(job_id, 9, "lost", holder=first)
    assert desk.store.get(job_id) == job
    assert desk.store.advance(job_id, JobState.STARTING, JobState.RUNNING, holder=job.submission_id)


def test_runners_of_a_machine_that_slept_are_left_in_peace(desk, monkeypatch):
    """All of them seem to have shown no life for hours; they do as soon as they run again."""
    job_id = desk.job()
    desk.look()
    desk.store.advance(job_id, JobState.STARTING, JobState.RUNNING)
    for _ in range(2):
        desk.silent_for(job_id, 3600)
        desk.look()
        desk.store.heartbeat(job_id)
        desk.look()
        later(monkeypatch, 6)
    desk.silent_for(job_id, 3600)
    desk.look()
    assert desk.cluster.stopped == []


def test_a_job_that_was_given_up_and_not_submitted_yet_is_nobodys(store):
    job = store.create(parse_spec({"algorithm": "fedavg"}))[0]
    store.advance(job.id, JobState.QUEUED, JobState.STARTING)
    store.set_submission(job.id, f"fedsim-{job.id}-0")
    assert store.restart(job.id, 3, "killed", lost=f"fedsim-{job.id}-0")
    assert store.get(job.id).submission_id is None
    assert not store.advance(job.id, JobState.STARTING, JobState.FAILED, holder=f"fedsim-{job.id}-0")
    assert store.advance(job.id, JobState.STARTING, JobState.RUNNING, holder=f"fedsim-{job.id}-1")


def test_a_job_that_ray_refuses_holds_nobody_up_for_long(desk):
    bad, good = desk.job("bad", priority=1), desk.job("good")
    desk.cluster.refuses.add(bad)
    for _ in range(2):
        with pytest.raises(JobRefused, match="no room in /tmp"):
            desk.look()
    assert (desk.state(bad), desk.state(good)) == (JobState.STARTING, JobState.QUEUED)
    desk.look()
    job = desk.store.get(bad)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.INTERNAL)
    assert "no room in /tmp (asked 3 times)" in job.message
    # Nor does the file stay with which it was to be told the passwords.
    assert not list(desk.settings.job_dir(bad).glob(".handover*"))
    assert desk.state(good) is JobState.STARTING


def test_a_ray_that_does_not_answer_changes_no_job(desk):
    job_id = desk.job()
    desk.look()
    before = desk.store.get(job_id)
    desk.cluster.there = False
    for _ in range(5):
        with pytest.raises(RayUnavailable):
            desk.look()
    assert desk.store.get(job_id) == before


def test_what_never_fits_fails_at_once_wherever_it_stands(desk):
    desk.job("first")
    desk.look()
    waits = desk.job("waits")
    never = desk.job("never", resources={"workers": 3})
    desk.look()
    job = desk.store.get(never)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.DOES_NOT_FIT)
    assert "3 workers x 1 CPU asked, 2 fit (here has 2 CPU and 0 GPU: 2 fit)" in job.message
    assert "resources.workers to 2 or fewer" in job.message
    assert desk.state(waits) is JobState.QUEUED
    assert desk.cluster.environments.keys() == {f"fedsim-{desk.store.list(state=ACTIVE).jobs[0].id}-0"}


def test_on_a_cluster_that_is_just_going_up_a_job_waits_for_its_nodes(store, url, tmp_path, monkeypatch):
    desk = Desk(store, url, tmp_path / "home", ray_address="10.0.0.1:6379")
    job_id, behind = desk.job(resources={"workers": 3}), desk.job()
    desk.look()
    job = store.get(job_id)
    assert job.state is JobState.QUEUED
    assert "does not fit on the nodes that are there now: 3 workers x 1 CPU asked, 2 fit" in job.waiting
    assert store.get(behind).waiting.startswith("1 job before it in the queue; it does not fit")
    # Nor is a job refused when it is submitted.
    assert desk.dispatcher.nodes() is None
    monkeypatch.setattr(room, "COUNT_SECONDS", 0.0)
    desk.cluster.has = [Node("here", 2, 0), Node("there", 1, 0)]
    desk.look()
    assert desk.state(job_id) is JobState.STARTING
    late = desk.job(resources={"workers": 9}, priority=5)
    desk.look()
    assert desk.state(late) is JobState.QUEUED
    monkeypatch.setattr(room, "SETTLE_SECONDS", 0.0)
    desk.look()
    assert store.get(late).reason is FailureReason.DOES_NOT_FIT
    assert desk.dispatcher.nodes() == desk.cluster.has


def test_each_job_that_waits_says_why(desk, monkeypatch):
    desk.settings = desk.dispatcher.settings = Settings(
        desk.settings.home, database_url=desk.settings.database_url, max_running=7
    )
    active = [desk.job(f"n{number}") for number in range(7)]
    desk.look()
    waiting = [desk.job() for _ in range(EXPLAINED + 2)]
    desk.look()
    names = ", ".join(f"{job_id} (n{number})" for number, job_id in enumerate(active[:5]))
    holds = f"7 of at most 7 jobs run: {names}, 2 more"
    assert desk.store.get(waiting[0]).waiting == holds
    assert desk.store.get(waiting[2]).waiting == f"2 jobs before it in the queue; {holds}"
    for job_id in waiting[EXPLAINED:]:
        assert desk.store.get(job_id).waiting == f"at least 100 jobs before it in the queue; {holds}"
    # A look that finds nothing new writes nothing to any of them.
    told, explain = [], desk.store.explain
    monkeypatch.setattr(
        desk.store, "explain", lambda *given, **more: (told.append(given), explain(*given, **more))
    )
    desk.look()
    assert [reasons for reasons, _ in told] == [{}]
    assert desk.store.get(waiting[2]).waiting == f"2 jobs before it in the queue; {holds}"


def test_two_dispatchers_keep_to_one_queue(store, url, tmp_path):
    shared = ThreadCluster(store)
    ids = [store.create(parse_spec({"algorithm": "fedavg", "rounds": 2}))[0].id for _ in range(24)]
    settings = [Settings(tmp_path / f"home{n}", database_url=url, max_running=3) for n in range(2)]
    pair = [Dispatcher(store, each, connect=lambda: shared) for each in settings]
    shared.on_end = lambda: [each.wake() for each in pair]
    for each in pair:
        each.start()
    deadline = time.monotonic() + 30
    while store.count(set(JobState) - FINAL):
        assert time.monotonic() < deadline
        assert store.count(ACTIVE) <= 3
        time.sleep(0.01)
    for each in pair:
        each.stop()
    shared.join()
    assert sorted(shared.submitted) == sorted(ids)
    assert store.count([JobState.SUCCEEDED]) == 24


def test_passwords_go_by_a_file_for_the_owner_only(store, tmp_path):
    secret = "postgresql://fedsim:sesame@db/fedsim"
    settings = Settings(tmp_path / "home", database_url=secret, storage="s3://key:pass@bucket/x")
    cluster, job = Scripted(), store.create(parse_spec({"algorithm": "fedavg"}))[0]
    store.advance(job.id, JobState.QUEUED, JobState.STARTING)
    reconciler = Reconciler(store, settings, ["run"])
    reconciler.submit(cluster, store.get(job.id))
    environment = cluster.environments[f"fedsim-{job.id}-0"]
    assert "sesame" not in json.dumps(environment)
    assert "key:pass" not in json.dumps(environment)
    (handed,) = settings.job_dir(job.id).iterdir()
    assert environment["FEDSIM_SECRETS"] == str(handed)
    assert handed.stat().st_mode & 0o777 == 0o600
    # What Ray itself has in its environment is older than what the service says.
    read = Settings.from_env(environment | {"FEDSIM_DATABASE_URL": "sqlite:///old.db"})
    assert (read.database_url, read.storage) == (settings.database_url, settings.storage)
    # It is gone once it has been read, and where nobody ever will.
    assert take(environment).database_url == secret
    assert not handed.exists()
    reconciler.submit(cluster, store.get(job.id))
    assert handed.exists()
    cluster.jobs.clear()
    store._set(job.id, heartbeat_at=datetime.now(UTC) - timedelta(days=1))
    reconciler.settle_all(cluster)
    assert [path.name for path in settings.job_dir(job.id).glob(".handover*")] == [
        f".handover-fedsim-{job.id}-1.json"
    ]
