"""The dispatcher's decisions, one look at a time, on a cluster that says what the test has it say."""

import errno
import json
import threading
import time
from pathlib import Path

import pytest

from actors.resources import ClusterNode
from fedsim.errors import JobRefused, RayUnavailable, StoreUnusable
from jobs.queue import capacity as room
from jobs.queue import reconciler
from jobs.queue.dispatcher import Dispatcher
from jobs.queue.reconciler import Reconciler
from jobs.queue.waiting_reasons import MAX_PLACES_EXPLAINED
from jobs.run.job_cluster import EXIT_NO_ANSWER, EXIT_STORE_UNUSABLE, RayJob
from jobs.run.runner_secrets import read_runner_settings
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.states import ACTIVE, FINAL, FailureReason, JobState
from tests.api.service import a_round
from tests.jobs.desk import ENDED, Desk, Scripted, later
from tests.thread_cluster import ThreadCluster


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


def test_a_job_that_ray_took_in_the_end_was_not_refused(desk, monkeypatch):
    job_id = desk.job()
    desk.cluster.refuses.add(job_id)
    for _ in range(2):
        with pytest.raises(JobRefused):
            desk.look()
    desk.cluster.refuses.clear()
    desk.look()
    desk.cluster.jobs[f"fedsim-{job_id}-0"] = ENDED
    desk.cluster.refuses.add(job_id)
    with pytest.raises(JobRefused):
        desk.look()
    assert desk.state(job_id) is JobState.STARTING


def test_a_job_that_was_resumed_meanwhile_does_not_fail(desk, monkeypatch):
    """Another service fails the job, and its user resumes it, while this one waits for Ray's log."""
    job_id = desk.job()
    desk.look()
    desk.cluster.jobs[f"fedsim-{job_id}-0"] = RayJob(ended=True, message="", exit_code=1)

    def resume_meanwhile(ray_job_id, lines=20):
        assert desk.store.change_state(job_id, JobState.STARTING, JobState.FAILED)
        desk.store.resume(job_id)
        desk.store.start_next_job(1)
        return "its last words"

    monkeypatch.setattr(desk.cluster, "read_log_tail", resume_meanwhile)
    desk.look()
    assert desk.state(job_id) is JobState.STARTING


def test_a_job_whose_store_was_full_has_failed_as_soon_as_there_is_room(desk, caplog):
    job_id = desk.job()
    desk.look()
    desk.cluster.jobs[f"fedsim-{job_id}-0"] = ENDED._replace(exit_code=EXIT_STORE_UNUSABLE)
    advance = desk.store.change_state

    def full(*_, **__):
        raise StoreUnusable("the store's disk is full", "make room")

    desk.store.change_state = full
    with pytest.raises(StoreUnusable) as trouble:
        desk.look()
    desk.dispatcher._report_failure(trouble.value)
    assert desk.dispatcher._trouble == "the store's disk is full (make room)"
    assert [(record.getMessage(), record.exc_info) for record in caplog.records][-1] == (
        "the store's disk is full (make room)",
        None,
    )
    desk.store.change_state = advance
    desk.look()
    job = desk.store.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.STORAGE_FAILED)
    assert "the store could not be used" in job.message
    assert "its last words" in job.message


def test_a_job_whose_store_fell_silent_goes_on_in_another_process(desk):
    job_id = desk.job()
    desk.look()
    desk.cluster.jobs[f"fedsim-{job_id}-0"] = ENDED._replace(exit_code=EXIT_NO_ANSWER)
    desk.look()
    job = desk.store.get(job_id)
    assert (job.state, job.restarts, job.submission_id) == (JobState.STARTING, 1, f"fedsim-{job_id}-1")
    said = desk.store.events(job_id)[-1].data["message"]
    assert said == "the database did not answer the job's process, which ended; its log says more"


def test_a_disk_that_is_full_keeps_no_other_job_from_its_end(desk, monkeypatch):
    desk.settings = desk.dispatcher.settings = Settings(
        desk.settings.home, database_url=desk.settings.database_url, max_running=3
    )
    killed, cancelled, hangs = desk.job("killed"), desk.job("cancelled"), desk.job("hangs")
    desk.look()
    desk.cluster.jobs[f"fedsim-{killed}-0"] = ENDED
    desk.cluster.jobs[f"fedsim-{cancelled}-0"] = ENDED
    for job_id in (cancelled, hangs):
        desk.store.request_cancel(job_id)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def look():
        with pytest.raises(OSError, match="No space"):
            desk.look()

    with monkeypatch.context() as disk:
        disk.setattr(reconciler, "write_runner_secrets", full)
        disk.setattr(Path, "open", full)
        look()
        assert (desk.state(killed), desk.state(cancelled)) == (JobState.STARTING, JobState.CANCELLED)
        later(disk, 7)
        look()
        assert desk.cluster.stopped == [f"fedsim-{hangs}-0"]
    desk.look()
    assert f"fedsim-{killed}-1" in desk.cluster.jobs


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


def test_without_a_node_jobs_are_accepted_and_wait(desk, monkeypatch):
    """As after the node of a local Ray was lost, until its keeper has noticed it."""
    monkeypatch.setattr(room, "NODE_REFRESH_SECONDS", 0.0)
    nodes, desk.cluster.has = desk.cluster.has, []
    waits = desk.job()
    desk.look()
    assert (desk.state(waits), desk.store.get(waits).waiting) == (
        JobState.QUEUED,
        "the Ray cluster has no node now",
    )
    assert desk.dispatcher.nodes() is None
    desk.cluster.has = nodes
    desk.look()
    assert desk.state(waits) is JobState.STARTING


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
    monkeypatch.setattr(room, "NODE_REFRESH_SECONDS", 0.0)
    desk.cluster.has = [ClusterNode("here", 2, 0), ClusterNode("there", 1, 0)]
    desk.look()
    assert desk.state(job_id) is JobState.STARTING
    late = desk.job(resources={"workers": 9}, priority=5)
    desk.look()
    assert desk.state(late) is JobState.QUEUED
    monkeypatch.setattr(room, "NODE_GROWTH_SECONDS", 0.0)
    desk.look()
    assert store.get(late).reason is FailureReason.DOES_NOT_FIT
    assert desk.dispatcher.nodes() == desk.cluster.has


def test_without_workers_a_submission_is_not_refused(store, url, tmp_path, monkeypatch):
    """Also later than the first minute: a job waits while no node takes workers."""
    monkeypatch.setattr(room, "NODE_GROWTH_SECONDS", 0.0)
    desk = Desk(store, url, tmp_path / "home", ray_address="10.0.0.1:6379")
    desk.cluster.has = [ClusterNode("head", 0, 0)]
    desk.look()
    assert desk.dispatcher.nodes() is None


def test_jobs_wait_for_nodes_that_are_replaced(store, url, tmp_path, monkeypatch):
    """Those that fitted before, and all while only the head is left. Any other job fails."""
    monkeypatch.setattr(room, "NODE_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(room, "NODE_GROWTH_SECONDS", 0.0)
    settings = {"ray_address": "10.0.0.1:6379", "max_running": 1}
    desk = Desk(store, url, tmp_path / "home", **settings)
    runs, waits = desk.job(), desk.job(resources={"workers": 2})
    desk.look()
    assert (desk.state(runs), desk.state(waits)) == (JobState.STARTING, JobState.QUEUED)
    desk.cluster.has = [ClusterNode("head", 0, 0, head=True)]
    later = desk.job(resources={"workers": 9})
    desk.look()
    assert (desk.state(waits), desk.state(later)) == (JobState.QUEUED, JobState.QUEUED)
    desk.cluster.has = [ClusterNode("here", 1, 0)]
    desk.look()
    assert (desk.state(waits), desk.state(later)) == (JobState.QUEUED, JobState.FAILED)


def test_a_job_that_has_trained_waits_for_nodes_after_a_restart_of_the_service(
    store, url, tmp_path, monkeypatch
):
    monkeypatch.setattr(room, "NODE_GROWTH_SECONDS", 0.0)
    desks = [Desk(store, url, tmp_path / "home", ray_address="10.0.0.1:6379") for _ in range(2)]
    job_id = desks[0].job(resources={"workers": 2})
    desks[0].look()
    store.change_state(job_id, JobState.STARTING, JobState.RUNNING)
    store.add_round(job_id, a_round(1))
    store.change_state(job_id, JobState.RUNNING, JobState.FAILED, reason=FailureReason.NODE_LOST)
    store.resume(job_id)
    desks[1].cluster.has = [ClusterNode("here", 1, 0)]
    desks[1].look()
    assert desks[1].state(job_id) is JobState.QUEUED


def test_each_job_that_waits_says_why(desk, monkeypatch):
    desk.settings = desk.dispatcher.settings = Settings(
        desk.settings.home, database_url=desk.settings.database_url, max_running=7
    )
    active = [desk.job(f"n{number}") for number in range(7)]
    desk.look()
    waiting = [desk.job() for _ in range(MAX_PLACES_EXPLAINED + 2)]
    desk.look()
    names = ", ".join(f"{job_id} (n{number})" for number, job_id in enumerate(active[:5]))
    holds = f"7 of at most 7 jobs run: {names}, 2 more"
    assert desk.store.get(waiting[0]).waiting == holds
    assert desk.store.get(waiting[2]).waiting == f"2 jobs before it in the queue; {holds}"
    for job_id in waiting[MAX_PLACES_EXPLAINED:]:
        assert desk.store.get(job_id).waiting == f"at least 100 jobs before it in the queue; {holds}"
    # A look that finds nothing new writes nothing to any of them.
    told, explain = [], desk.store.write_waiting_reasons
    monkeypatch.setattr(
        desk.store,
        "write_waiting_reasons",
        lambda *given, **more: (told.append(given), explain(*given, **more)),
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


def test_a_dispatcher_that_is_kept_waiting_is_not_ready(desk, monkeypatch):
    looking, go_on = threading.Event(), threading.Event()

    def silent(*_):
        looking.set()
        go_on.wait()
        return 0

    dispatcher = desk.dispatcher
    dispatcher.start()
    try:
        until_ready(dispatcher)
        monkeypatch.setattr(desk.store, "count", silent)
        dispatcher.wake()
        assert looking.wait(30)
        assert dispatcher.find_obstacle() is None
        later(monkeypatch, 100)
        assert "the dispatcher has done nothing for 1" in dispatcher.find_obstacle()
        go_on.set()
        until_ready(dispatcher)
    finally:
        go_on.set()
        dispatcher.stop()


def until_ready(dispatcher):
    while dispatcher.find_obstacle() is not None:
        time.sleep(0.01)


def test_passwords_go_by_a_file_for_the_owner_only(store, tmp_path, monkeypatch):
    secret = "postgresql://fedsim:sesame@db/fedsim"
    settings = Settings(
        tmp_path / "home", database_url=secret, storage="s3://key:pass@bucket/x", plugins="mine"
    )
    cluster, job = Scripted(), store.create(parse_spec({"algorithm": "fedavg"}))[0]
    store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    reconciler = Reconciler(store, settings, ["run"])
    reconciler.submit(cluster, store.get(job.id))
    environment = cluster.environments[f"fedsim-{job.id}-0"]
    assert environment["FEDSIM_PLUGINS"] == "mine"
    assert "sesame" not in json.dumps(environment)
    assert "key:pass" not in json.dumps(environment)
    (handed,) = settings.job_dir(job.id).iterdir()
    assert environment["FEDSIM_SECRETS"] == str(handed)
    assert handed.stat().st_mode & 0o777 == 0o600
    # What Ray itself has in its environment is older than what the service says.
    read = Settings.from_env(environment | {"FEDSIM_DATABASE_URL": "sqlite:///old.db"})
    assert (read.database_url, read.storage) == (settings.database_url, settings.storage)
    # It is gone once it has been read, and where nobody ever will.
    assert read_runner_settings(environment).database_url == secret
    assert not handed.exists()
    reconciler.submit(cluster, store.get(job.id))
    assert handed.exists()
    cluster.jobs.clear()
    store.record_heartbeat(job.id)
    reconciler.reconcile_jobs(cluster)
    later(monkeypatch, 16)
    reconciler.reconcile_jobs(cluster)
    assert [path.name for path in settings.job_dir(job.id).glob(".handover*")] == [
        f".handover-fedsim-{job.id}-1.json"
    ]
