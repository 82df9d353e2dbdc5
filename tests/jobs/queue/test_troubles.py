"""Trouble that the dispatcher meets: whom it holds up, and what is told of it to whom."""

import errno
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from fedsim.errors import RayUnavailable, StoreUnusable
from jobs.local_ray.embedded_ray import _make_start_error
from jobs.queue import reconciler
from jobs.queue.dispatcher import UNEXPECTED_ERROR_TEXT
from jobs.queue.reconciler import Reconciler
from jobs.settings import Settings
from jobs.store.database import DISK_FULL_HINT
from jobs.store.states import FailureReason, JobState
from tests.jobs.desk import ENDED


def test_a_job_whose_folder_cannot_be_written_holds_nobody_up(desk):
    desk.settings = desk.dispatcher.settings = Settings(
        desk.settings.home, database_url=desk.settings.database_url, max_running=2
    )
    bad, good, next_one = desk.job("bad", priority=1), desk.job("good"), desk.job("next")
    folder = desk.settings.make_home() / "jobs" / bad
    folder.parent.mkdir()
    folder.write_text("a file where a folder is to be")
    for _ in range(2):
        desk.look()
        assert (desk.state(bad), desk.state(good)) == (JobState.STARTING, JobState.STARTING)
        assert "log" not in (desk.store.get(next_one).waiting or "")
    desk.look()
    job = desk.store.get(bad)
    assert (job.state, job.reason) == (JobState.FAILED, FailureReason.STORAGE_FAILED)
    assert job.message.startswith(f"the job's folder {folder} cannot be written: ")
    assert job.message.endswith(" (tried 3 times)")
    assert desk.state(next_one) is JobState.STARTING
    assert desk.cluster.environments.keys() == {f"fedsim-{job_id}-0" for job_id in (good, next_one)}


def test_the_queue_is_served_whatever_trouble_a_job_that_runs_has(desk, monkeypatch):
    """As where the runner of one was killed, and the disk is too full for what the next one is to read."""
    desk.settings = desk.dispatcher.settings = Settings(
        desk.settings.home, database_url=desk.settings.database_url, max_running=2
    )
    killed = desk.job("killed")
    desk.look()
    desk.cluster.jobs[f"fedsim-{killed}-0"] = ENDED
    waits, hand_over = desk.job("waits"), reconciler.write_runner_secrets

    def full(settings, job_id, name):
        if job_id == killed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return hand_over(settings, job_id, name)

    with monkeypatch.context() as disk:
        disk.setattr(reconciler, "write_runner_secrets", full)
        for _ in range(5):
            with pytest.raises(OSError, match="No space"):
                desk.look()
    assert (desk.state(killed), desk.state(waits)) == (JobState.STARTING, JobState.STARTING)
    assert f"fedsim-{waits}-0" in desk.cluster.jobs
    desk.look()
    assert f"fedsim-{killed}-1" in desk.cluster.jobs


@pytest.mark.parametrize("away", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_home_that_is_away_fails_no_job(desk, monkeypatch, away):
    job = desk.job("waits for the home")

    def broken(*_, **__):
        raise OSError(away, "the home is away")

    with monkeypatch.context() as network:
        network.setattr(reconciler, "write_runner_secrets", broken)
        network.setattr(reconciler.tempfile, "TemporaryFile", broken)
        for _ in range(5):
            with pytest.raises(OSError, match="the home is away"):
                desk.look()
    assert desk.state(job) is JobState.STARTING
    desk.look()
    assert f"fedsim-{job}-0" in desk.cluster.jobs


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RayUnavailable("Ray at 10.0.0.1 does not answer"), "Ray at 10.0.0.1 does not answer"),
        (
            _make_start_error(Path("/root/secret"), "it ended with exit code 1"),
            "the local Ray did not start: it ended with exit code 1; the server's log says more",
        ),
        (
            OperationalError("SELECT secret", {"id": "secret"}, Exception("no route to secret")),
            "the database does not answer; see the server's log",
        ),
        (
            StoreUnusable("the store's disk is full: database or disk is full", DISK_FULL_HINT),
            f"the store's disk is full: database or disk is full ({DISK_FULL_HINT})",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/root/secret"),
            f"the disk is full: files of jobs cannot be written ({DISK_FULL_HINT})",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/root/secret"), UNEXPECTED_ERROR_TEXT),
        (KeyError("secret"), UNEXPECTED_ERROR_TEXT),
    ],
)
def test_what_anybody_may_ask_for_tells_no_secrets(desk, caplog, error, said):
    """They are in the log, once however often the same trouble comes."""
    job_id = desk.job()
    for _ in range(2):
        desk.dispatcher._report_failure(error)
        assert desk.dispatcher.find_obstacle() == said
        assert desk.store.get(job_id).waiting in (said, f"Ray does not answer: {said}")
    assert [record.getMessage().endswith(str(error)) for record in caplog.records] == [True]


def test_a_service_that_stalled_takes_no_job_back(desk, monkeypatch):
    """While it has a job submitted, another one notes the Ray job, sees it die and has the job go on."""
    job_id, submit = desk.job(), desk.cluster.submit
    other = Reconciler(desk.store, desk.settings, ["run"])

    def stall(name, command, environment):
        monkeypatch.setattr(desk.cluster, "submit", submit)
        submit(name, command, environment)
        other.reconcile_jobs(desk.cluster)
        desk.cluster.jobs[name] = ENDED
        other.reconcile_jobs(desk.cluster)

    monkeypatch.setattr(desk.cluster, "submit", stall)
    desk.look()
    job = desk.store.get(job_id)
    assert (job.submission_id, job.restarts) == (f"fedsim-{job_id}-1", 1)
    assert desk.cluster.stopped == [f"fedsim-{job_id}-0"]


def test_two_services_that_submit_one_job_leave_it_alone(desk, monkeypatch):
    job_id, submit = desk.job(), desk.cluster.submit
    other = Reconciler(desk.store, desk.settings, ["run"])

    def both(name, command, environment):
        monkeypatch.setattr(desk.cluster, "submit", submit)
        other.submit(desk.cluster, desk.store.get(job_id))
        submit(name, command, environment)

    monkeypatch.setattr(desk.cluster, "submit", both)
    desk.look()
    assert (desk.store.get(job_id).submission_id, desk.cluster.stopped) == (f"fedsim-{job_id}-0", [])


def test_what_another_service_makes_of_a_found_job_is_seen_the_next_time(desk, monkeypatch):
    job_id = desk.job()
    with monkeypatch.context() as died:
        died.setattr(desk.store, "set_ray_job_id", lambda *_, **__: pytest.fail("this one died"))
        with pytest.raises(pytest.fail.Exception):
            desk.look()
    desk.cluster.jobs[f"fedsim-{job_id}-0"] = ENDED
    with monkeypatch.context() as late:
        late.setattr(desk.store, "set_ray_job_id", lambda *_, **__: False)
        desk.look()
        assert desk.store.get(job_id).restarts == 0
    desk.look()
    assert desk.store.get(job_id).restarts == 1
