"""One contract over both databases: SQLite, and PostgreSQL where FEDSIM_TEST_POSTGRES_URL names a server."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from fedsim.errors import Conflict, JobNotFound, RequestError, SpecError
from jobs.spec import JobSpec, parse_spec
from jobs.spec.submission import check_submission
from jobs.store import tables
from jobs.store.states import ACTIVE, FailureReason, JobState
from tests.jobs.stored import SPEC, record, running


def test_a_new_job_waits_in_the_queue(store):
    before = datetime.now(UTC)
    job, is_new = store.create(SPEC, priority=3, labels={"team": "a"})
    assert is_new
    assert job == store.get(job.id)
    assert (job.state, job.priority, job.labels, job.name) == (JobState.QUEUED, 3, {"team": "a"}, "fedavg")
    assert (job.rounds_total, job.rounds_done, job.restarts) == (3, 0, 0)
    assert parse_spec(job.spec) == SPEC
    assert before <= job.created_at <= datetime.now(UTC)
    assert job.created_at.tzinfo is UTC
    assert (job.submitted_at, job.started_at, job.finished_at, job.reason) == (None, None, None, None)
    (event,) = store.events(job.id)
    assert (event.id, event.type, event.data["state"], event.data["terminal"]) == (
        1,
        "state",
        "QUEUED",
        False,
    )


def test_unknown_jobs_are_not_found(store):
    for call in (
        store.get,
        store.delete,
        store.request_cancel,
        store.resume,
        lambda job_id: store.restart(job_id, 3, "x"),
        store.rounds,
        store.events,
        store.record_heartbeat,
        lambda job_id: store.add_warning(job_id, "x"),
        lambda job_id: store.add_round(job_id, record(0)),
        lambda job_id: store.set_ray_job_id(job_id, "x"),
        lambda job_id: store.change_state(job_id, JobState.QUEUED, JobState.STARTING),
    ):
        with pytest.raises(JobNotFound, match="nope"):
            call("nope")


def test_one_key_makes_one_job(store):
    first, is_new = store.create(SPEC, labels={"a": "b"}, idempotency_key="k-1")
    again, again_new = store.create(SPEC, labels={"a": "b"}, idempotency_key="k-1")
    assert (is_new, again_new) == (True, False)
    assert again == first
    for other in ({"priority": 1}, {"labels": {"a": "c"}}):
        with pytest.raises(Conflict, match="k-1"):
            store.create(SPEC, **{"labels": {"a": "b"}, "idempotency_key": "k-1"} | other)
    assert len(store.list().jobs) == 1


def test_a_body_is_the_same_where_it_was_hashed_with_every_default(store):
    job, _ = store.create(SPEC, idempotency_key="old")
    asked = {"priority": 0, "labels": {}, "idempotency_key": "old"}
    body = json.dumps([SPEC.model_dump(mode="json"), 0, {}], sort_keys=True)
    with store._write_engine.begin() as connection:
        connection.execute(tables.jobs.update().values(body_hash=hashlib.sha256(body.encode()).hexdigest()))
    assert store.create(SPEC, idempotency_key="old") == (job, False)
    assert store.find_submitted_job(SPEC, **asked) == job
    assert store.find_submitted_job(SPEC, **asked | {"idempotency_key": "new"}) is None
    with pytest.raises(Conflict):
        store.find_submitted_job(SPEC, **asked | {"priority": 1})


def test_a_field_that_a_newer_version_has_leaves_a_body_the_same():
    class Newer(JobSpec):
        more: int = 3

    data = {"algorithm": "fedprox", "rounds": 20, "local": {"lr": 0.1}}
    specs = parse_spec(data), Newer.model_validate(data), Newer.model_validate(data | {"more": 4})
    older, newer, other = (check_submission(spec, 0, {}, None).body_hash() for spec in specs)
    assert older == newer != other
    assert older == check_submission(parse_spec(data | {"clients": {}}), 0, {}, None).body_hash()


def test_twenty_at_once_with_one_key_make_one_job(store):
    with ThreadPoolExecutor(20) as threads:
        made = list(threads.map(lambda _: store.create(SPEC, idempotency_key="same"), range(20)))
    assert len({job.id for job, _ in made}) == 1
    assert sum(is_new for _, is_new in made) == 1


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"priority": 1001}, "priority"),
        ({"priority": True}, "priority"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": {"a": "c\nd"}}, "labels.a"),
        ({"labels": {"a": "x" * 201}}, "labels.a"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"idempotency_key": ""}, "Idempotency-Key"),
        ({"idempotency_key": "ü"}, "Idempotency-Key"),
    ],
)
def test_what_cannot_be_stored_is_refused(store, arguments, path):
    with pytest.raises(SpecError) as caught:
        store.create(SPEC, **arguments)
    assert [e.path for e in caught.value.errors] == [path]


def test_a_job_from_the_queue_to_its_end(store):
    job_id = running(store)
    store.set_ray_job_id(job_id, f"fedsim-{job_id}-0")
    job = store.get(job_id)
    assert job.created_at <= job.submitted_at <= job.started_at
    assert job.submission_id == f"fedsim-{job_id}-0"
    assert not store.change_state(job_id, JobState.STARTING, JobState.RUNNING)
    assert store.change_state(job_id, ACTIVE - {JobState.CANCELLING}, JobState.FAILED, message="no memory")
    job = store.get(job_id)
    assert (job.state, job.reason, job.message) == (JobState.FAILED, FailureReason.INTERNAL, "no memory")
    assert job.finished_at >= job.started_at
    last = store.events(job_id)[-1]
    assert last.data == {
        "state": "FAILED",
        "previous": "RUNNING",
        "reason": "INTERNAL",
        "message": "no memory",
        "terminal": True,
    }


def test_ways_that_do_not_exist_are_conflicts(store):
    job, _ = store.create(SPEC)
    with pytest.raises(Conflict):
        store.change_state(job.id, JobState.QUEUED, JobState.RUNNING)
    with pytest.raises(Conflict, match="only FAILED"):
        store.change_state(job.id, JobState.QUEUED, JobState.CANCELLED, reason=FailureReason.INTERNAL)
    assert store.get(job.id) == job


def test_a_restart_counts_and_asks_for_a_new_submission(store):
    job_id = running(store)
    store.set_ray_job_id(job_id, "first")
    started = store.get(job_id)
    assert store.change_state(job_id, JobState.RUNNING, JobState.STARTING)
    job = store.get(job_id)
    assert (job.restarts, job.submission_id) == (1, None)
    assert (job.submitted_at, job.started_at) == (started.submitted_at, started.started_at)


def test_a_restart_is_for_who_lost_the_job_and_only_so_often(store):
    job_id = running(store)
    store.set_ray_job_id(job_id, "first")
    store.record_heartbeat(job_id)
    assert store.restart(job_id, 2, "the coordinator died")
    job = store.get(job_id)
    assert (job.state, job.restarts, job.submission_id) == (JobState.STARTING, 1, "first")
    assert job.heartbeat_at is not None
    assert store.events(job_id)[-1].data["message"] == "the coordinator died"
    assert not store.restart(job_id, 2, "killed", lost_ray_job_id="another")
    assert store.restart(job_id, 2, "killed", lost_ray_job_id="first")
    job = store.get(job_id)
    assert (job.restarts, job.submission_id, job.heartbeat_at) == (2, None, None)
    assert not store.restart(job_id, 2, "once too often")
    store.request_cancel(job_id)
    assert not store.restart(job_id, 9, "cancelled in between")


def test_a_submission_is_noted_for_the_life_of_the_job_that_it_was_made_for(store):
    job_id = running(store)
    seen = store.get(job_id)
    assert store.set_ray_job_id(job_id, "first", seen=seen)
    assert not store.set_ray_job_id(job_id, "late", seen=seen)
    assert store.restart(job_id, 3, "killed", lost_ray_job_id="first")
    assert not store.set_ray_job_id(job_id, "late", seen=seen)
    assert store.get(job_id).submission_id is None
    again = store.get(job_id)
    store.change_state(job_id, JobState.STARTING, JobState.FAILED)
    store.resume(job_id)
    for late in (seen, again):
        assert not store.set_ray_job_id(job_id, "late", seen=late)
    assert store.set_ray_job_id(job_id, "resumed", seen=store.get(job_id))
    assert store.get(job_id).submission_id == "resumed"


def test_a_failed_job_is_resumed_and_its_history_has_one_end(store):
    job_id = running(store)
    store.set_ray_job_id(job_id, "first")
    store.add_round(job_id, record(1))
    store.restart(job_id, 3, "the coordinator died")
    with pytest.raises(Conflict, match="is STARTING and cannot be resumed"):
        store.resume(job_id)
    store.change_state(job_id, JobState.STARTING, JobState.FAILED, message="no memory")
    job = store.resume(job_id)
    assert (job.state, job.reason, job.message, job.finished_at) == (JobState.QUEUED, None, None, None)
    assert job.started_at is None
    assert (job.restarts, job.resumes, job.submission_id, job.rounds_done) == (0, 1, None, 1)
    assert [job.id for job in store.queue(limit=1)] == [job_id]
    assert [e.data.get("terminal", False) for e in store.events(job_id)].count(True) == 0
    failed, queued = store.events(job_id)[-2:]
    assert (failed.data["state"], failed.data["message"]) == ("FAILED", "no memory")
    assert (queued.data["state"], queued.data["previous"]) == ("QUEUED", "FAILED")
    store.request_cancel(job_id)
    assert store.resume(job_id).resumes == 2
    for source, target in pairwise(
        [JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED]
    ):
        assert store.change_state(job_id, source, target)
    with pytest.raises(Conflict, match="SUCCEEDED and cannot be resumed"):
        store.resume(job_id)
    assert [e.data.get("terminal", False) for e in store.events(job_id)].count(True) == 1


def test_one_of_many_wins_a_compare_and_set(store):
    job, _ = store.create(SPEC)
    with ThreadPoolExecutor(16) as threads:
        move = lambda _: store.change_state(job.id, JobState.QUEUED, JobState.STARTING)  # noqa: E731
        assert sum(threads.map(move, range(16))) == 1
    assert [e.id for e in store.events(job.id)] == [1, 2]


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ("QUEUED", "CANCELLED"),
        ("STARTING", "CANCELLING"),
        ("RUNNING", "CANCELLING"),
        ("SUCCEEDED", "SUCCEEDED"),
    ],
)
def test_cancel_is_one_wish_however_often_it_comes(store, state, after):
    job, _ = store.create(SPEC)
    way = [JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED]
    for source, target in pairwise(way[: way.index(JobState(state)) + 1]):
        store.change_state(job.id, source, target)
    assert store.request_cancel(job.id).state == after
    count = len(store.events(job.id))
    assert store.request_cancel(job.id).state == after
    assert len(store.events(job.id)) == count


def test_heartbeats(store):
    job_id = running(store)
    assert store.get(job_id).heartbeat_at is None
    store.record_heartbeat(job_id)
    assert datetime.now(UTC) - store.get(job_id).heartbeat_at < timedelta(seconds=10)


def test_a_finished_job_takes_more_rounds(store):
    job_id = running(store)
    with pytest.raises(Conflict, match="is RUNNING and cannot be resumed"):
        store.resume(job_id, rounds=9)
    for number in (1, 2, 3):
        store.add_round(job_id, record(number))
    store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
    with pytest.raises(Conflict, match="SUCCEEDED and cannot be resumed"):
        store.resume(job_id)
    with pytest.raises(RequestError, match="has 3 rounds already"):
        store.resume(job_id, rounds=3)
    job = store.resume(job_id, rounds=9)
    assert (job.state, job.rounds_done, job.rounds_total, job.spec["rounds"]) == (JobState.QUEUED, 3, 9, 9)
    assert job.message == "resumed with 9 rounds, after 3 of 3"
    assert [e.data.get("terminal", False) for e in store.events(job_id)].count(True) == 0
    assert [round.round for round in store.rounds(job_id)] == [1, 2, 3]


def test_a_very_long_message_keeps_its_beginning_and_its_end(store):
    job_id, text = running(store), f"client 3 failed: {'x' * 1_000_000} (net.py:7)"
    assert store.add_warning(job_id, text)
    assert store.change_state(job_id, JobState.RUNNING, JobState.FAILED, message=text)
    warned, failed = store.events(job_id)[-2:]
    for kept in (store.get(job_id).message, warned.data["message"], failed.data["message"]):
        assert (len(kept) < 10_010, kept[:16], kept[-10:]) == (True, "client 3 failed:", "(net.py:7)")
