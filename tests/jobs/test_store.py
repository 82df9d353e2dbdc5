"""One contract over both databases: SQLite, and PostgreSQL where FEDSIM_TEST_POSTGRES_URL names a server."""

import hashlib
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from fedsim.errors import BadPageToken, Conflict, JobNotFound, SpecError, StoreError
from jobs import tables
from jobs.database import alembic_config, connect, migrating, writing
from jobs.migrations import HEAD
from jobs.records import RoundRecord
from jobs.spec import JobSpec, parse_spec
from jobs.states import ACTIVE, FailureReason, JobState
from jobs.store import JobStore
from jobs.submission import check_submission

SPEC = parse_spec({"algorithm": "fedavg", "rounds": 3})


def record(number, digest="d", **metrics):
    return RoundRecord.model_validate(
        {
            "round": number,
            "digest": f"{digest}{number}",
            "cohort": 10,
            "seconds": {"total": 1.5},
            "bytes": {"down": 10, "up": 20, "by_payload": {"params": 20}},
            "metrics": metrics,
            "engine": {"pool": "serial", "threads": 1},
        }
    )


def running(store):
    job, _ = store.create(SPEC)
    store.advance(job.id, JobState.QUEUED, JobState.STARTING)
    store.advance(job.id, JobState.STARTING, JobState.RUNNING)
    return job.id


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
        store.heartbeat,
        lambda job_id: store.warn(job_id, "x"),
        lambda job_id: store.add_round(job_id, record(0)),
        lambda job_id: store.set_submission(job_id, "x"),
        lambda job_id: store.advance(job_id, JobState.QUEUED, JobState.STARTING),
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
    with store._writes.begin() as connection:
        connection.execute(tables.jobs.update().values(body_hash=hashlib.sha256(body.encode()).hexdigest()))
    assert store.create(SPEC, idempotency_key="old") == (job, False)
    assert store.submitted(SPEC, **asked) == job
    assert store.submitted(SPEC, **asked | {"idempotency_key": "new"}) is None
    with pytest.raises(Conflict):
        store.submitted(SPEC, **asked | {"priority": 1})


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
    store.set_submission(job_id, f"fedsim-{job_id}-0")
    job = store.get(job_id)
    assert job.created_at <= job.submitted_at <= job.started_at
    assert job.submission_id == f"fedsim-{job_id}-0"
    assert not store.advance(job_id, JobState.STARTING, JobState.RUNNING)
    assert store.advance(job_id, ACTIVE - {JobState.CANCELLING}, JobState.FAILED, message="no memory")
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
        store.advance(job.id, JobState.QUEUED, JobState.RUNNING)
    with pytest.raises(Conflict, match="only FAILED"):
        store.advance(job.id, JobState.QUEUED, JobState.CANCELLED, reason=FailureReason.INTERNAL)
    assert store.get(job.id) == job


def test_a_restart_counts_and_asks_for_a_new_submission(store):
    job_id = running(store)
    store.set_submission(job_id, "first")
    started = store.get(job_id)
    assert store.advance(job_id, JobState.RUNNING, JobState.STARTING)
    job = store.get(job_id)
    assert (job.restarts, job.submission_id) == (1, None)
    assert (job.submitted_at, job.started_at) == (started.submitted_at, started.started_at)


def test_a_restart_is_for_who_lost_the_job_and_only_so_often(store):
    job_id = running(store)
    store.set_submission(job_id, "first")
    store.heartbeat(job_id)
    assert store.restart(job_id, 2, "the coordinator died")
    job = store.get(job_id)
    assert (job.state, job.restarts, job.submission_id) == (JobState.STARTING, 1, "first")
    assert job.heartbeat_at is not None
    assert store.events(job_id)[-1].data["message"] == "the coordinator died"
    assert not store.restart(job_id, 2, "killed", lost="another")
    assert store.restart(job_id, 2, "killed", lost="first")
    job = store.get(job_id)
    assert (job.restarts, job.submission_id, job.heartbeat_at) == (2, None, None)
    assert not store.restart(job_id, 2, "once too often")
    store.request_cancel(job_id)
    assert not store.restart(job_id, 9, "cancelled in between")


def test_a_failed_job_is_resumed_and_its_history_has_one_end(store):
    job_id = running(store)
    store.set_submission(job_id, "first")
    store.add_round(job_id, record(1))
    store.restart(job_id, 3, "the coordinator died")
    with pytest.raises(Conflict, match="is STARTING and cannot be resumed"):
        store.resume(job_id)
    store.advance(job_id, JobState.STARTING, JobState.FAILED, message="no memory")
    job = store.resume(job_id)
    assert (job.state, job.reason, job.message, job.finished_at) == (JobState.QUEUED, None, None, None)
    assert job.started_at is None
    assert (job.restarts, job.resumes, job.submission_id, job.rounds_done) == (0, 1, None, 1)
    assert store.next_queued().id == job_id
    assert [e.data.get("terminal", False) for e in store.events(job_id)].count(True) == 0
    failed, queued = store.events(job_id)[-2:]
    assert (failed.data["state"], failed.data["message"]) == ("FAILED", "no memory")
    assert (queued.data["state"], queued.data["previous"]) == ("QUEUED", "FAILED")
    store.request_cancel(job_id)
    assert store.resume(job_id).resumes == 2
    for source, target in pairwise(
        [JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED]
    ):
        assert store.advance(job_id, source, target)
    with pytest.raises(Conflict, match="SUCCEEDED and cannot be resumed"):
        store.resume(job_id)
    assert [e.data.get("terminal", False) for e in store.events(job_id)].count(True) == 1


def test_one_of_many_wins_a_compare_and_set(store):
    job, _ = store.create(SPEC)
    with ThreadPoolExecutor(16) as threads:
        move = lambda _: store.advance(job.id, JobState.QUEUED, JobState.STARTING)  # noqa: E731
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
        store.advance(job.id, source, target)
    assert store.request_cancel(job.id).state == after
    count = len(store.events(job.id))
    assert store.request_cancel(job.id).state == after
    assert len(store.events(job.id)) == count


def test_rounds_are_written_exactly_once(store):
    job_id = running(store)
    assert store.add_round(job_id, record(0, accuracy=0.5, loss=float("nan")))
    assert store.add_round(job_id, record(1))
    assert not store.add_round(job_id, record(1))
    assert [r.round for r in store.rounds(job_id)] == [0, 1]
    assert store.rounds(job_id)[0].metrics == {"accuracy": 0.5, "loss": None}
    assert store.rounds(job_id)[1] == record(1)
    assert [r.round for r in store.rounds(job_id, after=0)] == [1]
    assert [r.round for r in store.rounds(job_id, limit=1)] == [0]
    job = store.get(job_id)
    assert (job.rounds_done, job.last_metrics["accuracy"]) == (2, 0.5)
    found = [e for e in store.events(job_id) if e.type == "round"]
    assert [RoundRecord.model_validate(e.data) for e in found] == list(store.rounds(job_id))


def test_a_round_that_comes_out_differently_is_warned_of(store):
    job_id = running(store)
    store.add_round(job_id, record(0))
    assert not store.add_round(job_id, record(0, digest="other"))
    assert store.rounds(job_id) == (record(0),)
    warning = store.events(job_id)[-1]
    assert warning.type == "warning"
    assert "digest d0 is kept, other0 came" in warning.data["message"]


def test_nothing_follows_the_terminal_event(store):
    job_id = running(store)
    store.add_round(job_id, record(0))
    store.advance(job_id, JobState.RUNNING, JobState.SUCCEEDED)
    assert not store.add_round(job_id, record(0, digest="other"))
    assert not store.warn(job_id, "too late")
    with pytest.raises(Conflict, match="no more rounds"):
        store.add_round(job_id, record(1))
    assert store.events(job_id)[-1].data["terminal"] is True


def test_events_are_numbered_without_gaps_whoever_writes(store):
    job_id = running(store)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: store.add_round(job_id, record(n)), range(24)))
        list(threads.map(lambda n: store.warn(job_id, f"w{n}"), range(8)))
    numbers = [e.id for e in store.events(job_id)]
    assert numbers == list(range(1, 3 + 24 + 8 + 1))
    assert store.get(job_id).rounds_done == 24
    assert [e.id for e in store.events(job_id, after=30)] == [31, 32, 33, 34, 35]
    assert [e.id for e in store.events(job_id, after=3, limit=2)] == [4, 5]


def test_a_reader_never_meets_a_gap(store):
    """A reader that polls with `after` sees every event once, in order, while others write."""
    job_id = running(store)
    seen, done = [], threading.Event()

    def read():
        while not done.is_set() or len(seen) < 43:
            seen.extend(e.id for e in store.events(job_id, after=seen[-1] if seen else 0))

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: store.warn(job_id, f"w{n}"), range(40)))
    done.set()
    reader.join(timeout=20)
    assert seen == list(range(1, 44))


def test_the_queue_goes_by_priority_then_age(store):
    names = [store.create(SPEC, priority=p)[0].id for p in (0, 5, 0, 5, -1)]
    order = [names[i] for i in (1, 3, 0, 2, 4)]
    assert [j.id for j in store.queue()] == order
    assert store.next_queued().id == order[0]
    store.request_cancel(order[0])
    assert store.next_queued().id == order[1]
    assert store.count([JobState.QUEUED]) == 4
    assert store.count([JobState.QUEUED, JobState.CANCELLED]) == 5
    assert store.count(ACTIVE) == 0


def test_waiting_is_said_of_queued_jobs_only(store):
    job, _ = store.create(SPEC)
    store.set_waiting(job.id, "2 jobs are before it")
    assert store.get(job.id).waiting == "2 jobs are before it"
    store.advance(job.id, JobState.QUEUED, JobState.STARTING)
    assert store.get(job.id).waiting is None
    store.set_waiting(job.id, "late")
    assert store.get(job.id).waiting is None


def test_heartbeats(store):
    job_id = running(store)
    assert store.get(job_id).heartbeat_at is None
    store.heartbeat(job_id)
    assert datetime.now(UTC) - store.get(job_id).heartbeat_at < timedelta(seconds=10)


def test_only_ended_jobs_can_be_deleted(store):
    job_id = running(store)
    store.add_round(job_id, record(0))
    with pytest.raises(Conflict, match="cancel it first"):
        store.delete(job_id)
    store.advance(job_id, JobState.RUNNING, JobState.SUCCEEDED)
    store.delete(job_id)
    with pytest.raises(JobNotFound):
        store.events(job_id)
    with store._engine.connect() as connection:
        for table in tables.metadata.sorted_tables:
            left = connection.execute(table.select()).all()
            # What a job has done has been done, though it is forgotten.
            assert len(left) == (table is tables.totals)


def test_a_deleted_job_frees_its_key(store):
    job, _ = store.create(SPEC, idempotency_key="k", labels={"a": "1"})
    store.request_cancel(job.id)
    store.delete(job.id)
    assert store.create(SPEC, priority=1, idempotency_key="k")[1]


@pytest.mark.parametrize("order_by", ["-created_at", "created_at", "priority", "-priority", "name", "-state"])
def test_pages_hold_every_job_once(store, order_by):
    made = [
        store.create(parse_spec({"algorithm": "fedavg", "name": f"n{i % 3}"}), priority=i % 2)[0]
        for i in range(7)
    ]
    store.request_cancel(made[3].id)
    seen, token = [], None
    while True:
        page = store.list(order_by=order_by, limit=2, page_token=token)
        seen += page.jobs
        token = page.next_page_token
        if token is None:
            break
    assert len(seen) == 7
    field = order_by.removeprefix("-")
    key = lambda job: (getattr(job, field), job.id)  # noqa: E731
    everything = [store.get(job.id) for job in made]
    ordered = sorted(everything, key=key, reverse=order_by[0] == "-")
    if field == "priority":
        # The order of the queue, and the same from its end.
        queue = sorted(everything, key=lambda job: (-job.priority, job.created_at, job.id))
        ordered = queue if order_by[0] == "-" else queue[::-1]
    assert [j.id for j in seen] == [j.id for j in ordered]


def test_new_jobs_do_not_shift_the_next_page(store):
    made = [store.create(SPEC)[0].id for _ in range(4)]
    first = store.list(limit=2)
    store.create(SPEC)
    second = store.list(limit=2, page_token=first.next_page_token)
    assert [j.id for j in [*first.jobs, *second.jobs]] == made[::-1]


def test_filters(store):
    a = store.create(SPEC, labels={"team": "a", "kind": "x"})[0].id
    b = store.create(SPEC, labels={"team": "b"})[0].id
    c = running(store)
    assert [j.id for j in store.list(state=JobState.QUEUED).jobs] == [b, a]
    assert [j.id for j in store.list(state=ACTIVE).jobs] == [c]
    assert [j.id for j in store.list(label="team=a").jobs] == [a]
    assert [j.id for j in store.list(label="team").jobs] == [b, a]
    assert [j.id for j in store.list(label="team=b", state={JobState.RUNNING}).jobs] == []


def test_wrong_pages_are_refused(store):
    for _ in range(3):
        store.create(SPEC)
    token = store.list(limit=1).next_page_token
    for wrong in ("", "x", "é", token[:-4], "bnVsbA", "WzEsMiwzXQ"):
        with pytest.raises(BadPageToken):
            store.list(limit=1, page_token=wrong)
    with pytest.raises(BadPageToken):
        store.list(limit=1, order_by="name", page_token=token)
    with pytest.raises(BadPageToken):
        store.list(limit=1, label="a", page_token=token)
    with pytest.raises(SpecError) as caught:
        store.list(limit=0, order_by="colour")
    assert [e.path for e in caught.value.errors] == ["order_by", "limit"]


def test_two_openers_of_an_empty_database_both_get_it(url):
    code = "import sys; from jobs.store import JobStore; print(len(JobStore.open(sys.argv[1]).list().jobs))"
    openers = [
        subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    results = [opener.communicate(timeout=60) for opener in openers]
    assert [out for out, _ in results] == [b"0\n"] * 4, results


def test_processes_share_a_store(store, url):
    """Three processes write 30 rounds each, every round twice over all: each is there once."""
    job_id = running(store)
    code = (
        "import sys\nfrom tests.jobs.test_store import *\n"
        "store = JobStore.open(sys.argv[1])\n"
        "print(sum(store.add_round(sys.argv[2], record(n)) for n in range(30)))"
    )
    command = [sys.executable, "-c", code, url, job_id]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    new = [int(writer.communicate(timeout=60)[0]) for writer in writers]
    assert sum(new) == 30
    assert [r.round for r in store.rounds(job_id)] == list(range(30))
    assert store.get(job_id).rounds_done == 30


def test_models_and_migrations_agree(url):
    engine = connect(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == HEAD
        assert ScriptDirectory.from_config(alembic_config(connection)).get_heads() == [HEAD]
    engine.dispose()


def test_migrations_go_back_to_nothing(url):
    from alembic import command

    engine = connect(url)
    with migrating(engine) as connection:
        command.downgrade(alembic_config(connection), "base")
    engine.dispose()
    engine = connect(url)
    engine.dispose()


def test_rounds_of_an_older_database_are_counted(url, store):
    from alembic import command

    job_id = running(store)
    store.create(SPEC)
    for number in (1, 2):
        store.add_round(job_id, record(number))
    counted = store.totals()
    engine = connect(url)
    with writing(engine).begin() as connection:
        command.downgrade(alembic_config(connection), "0003")
    engine.dispose()
    with JobStore.open(url) as upgraded:
        again = upgraded.totals()
    assert again.sums == counted.sums
    assert again.sums["rounds"] == 2
    assert (again.waited, again.waits) == (1, counted.waits)
    assert again.wait_seconds == pytest.approx(counted.wait_seconds, abs=0.01)


def test_a_store_of_a_newer_version_is_refused(url):
    engine = connect(url)
    with writing(engine).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="another version of fedsim"):
        JobStore.open(url)


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "jobs.db").write_text("a letter to somebody\n" * 100)
    with pytest.raises(StoreError, match=r"cannot open the store .*jobs\.db: file is not a database"):
        JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.mark.parametrize(
    "wrong",
    [
        "nonsense",
        "mysql://host/db",
        "sqlite:////proc/no/such/fedsim.db",
        "postgresql://u:secret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=u&password=secret",
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_its_password(wrong):
    with pytest.raises(StoreError) as caught:
        JobStore.open(wrong)
    assert "secret" not in str(caught.value)
