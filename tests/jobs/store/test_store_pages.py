"""The queue, and the pages of jobs that the store answers with."""

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from fedsim.errors import BadPageToken, Conflict, JobNotFound, SpecError
from jobs.queue.waiting_reasons import update_waiting_reasons
from jobs.spec import parse_spec
from jobs.store import paging, tables
from jobs.store.queue_order import SortKey
from jobs.store.reader import count_rows_that_fit
from jobs.store.states import ACTIVE, JobState
from jobs.store.tables import jobs, rounds
from tests.jobs.stored import SPEC, record, running


def test_the_queue_goes_by_priority_then_age(store):
    names = [store.create(SPEC, priority=p)[0].id for p in (0, 5, 0, 5, -1)]
    order = [names[i] for i in (1, 3, 0, 2, 4)]
    assert [j.id for j in store.queue()] == order
    assert [j.id for j in store.queue(limit=1)] == order[:1]
    store.request_cancel(order[0])
    assert [j.id for j in store.queue(limit=1)] == order[1:2]
    assert store.count([JobState.QUEUED]) == 4
    assert store.count([JobState.QUEUED, JobState.CANCELLED]) == 5
    assert store.count(ACTIVE) == 0


def test_no_active_job_is_left_out(store):
    waiting, first = store.create(SPEC)[0].id, running(store)
    with store._write_engine.begin() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == first)).mappings().one()
        connection.execute(jobs.insert(), [{**row, "id": str(number)} for number in range(1000)])
    update_waiting_reasons(store, None)
    assert store.get(waiting).waiting.startswith("1001 jobs run")


def test_waiting_is_said_of_queued_jobs_only(store):
    job, _ = store.create(SPEC)
    store.write_waiting_reasons({job.id: "2 jobs are before it"})
    assert store.get(job.id).waiting == "2 jobs are before it"
    store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    assert store.get(job.id).waiting is None
    store.write_waiting_reasons({job.id: "late"})
    assert store.get(job.id).waiting is None


def test_a_starting_job_says_what_it_does_until_its_rounds_begin(store):
    job, _ = store.create(SPEC)
    store.write_start_step(job.id, "loading data")
    assert store.get(job.id).waiting is None  # still queued
    store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    store.write_start_step(job.id, "loading data")
    assert store.get(job.id).waiting == "loading data"
    store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    store.write_start_step(job.id, "late")
    assert store.get(job.id).waiting is None
    with pytest.raises(JobNotFound):
        store.write_start_step("nobody", "loading data")


def test_only_ended_jobs_can_be_deleted(store):
    job_id = running(store)
    store.add_round(job_id, record(0))
    with pytest.raises(Conflict, match="cancel it first"):
        store.delete(job_id)
    store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
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


def test_the_keys_of_an_order_may_change_direction_several_times(store, monkeypatch):
    keys = (jobs.c.state, True), (jobs.c.name, False), (jobs.c.priority, True), (jobs.c.id, False)
    monkeypatch.setitem(paging.ORDERS, "state", tuple(SortKey(*key) for key in keys))
    for i in range(12):
        named = parse_spec({"algorithm": "fedavg", "name": f"n{i % 3}"})
        store.create(named, priority=i % 2)
    store.start_next_job(1)
    seen, token = [], None
    while not seen or token is not None:
        page = store.list(order_by="state", limit=1, page_token=token)
        seen += page.jobs
        token = page.next_page_token
    ordered = sorted(seen, key=lambda job: (job.state == JobState.QUEUED, job.name, -job.priority, job.id))
    assert [job.id for job in seen] == [job.id for job in ordered]
    assert len({job.id for job in seen}) == 12


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


def test_pages_of_large_rows_end_early(store):
    """A page has at least one row, and none of the rows is lost between pages."""
    job_id = running(store)
    for number in range(5):
        store.add_round(job_id, record(number).model_copy(update={"method": {"large": "x" * 1000 * number}}))
    sizes = [len(store.rounds(job_id, after, 10, 3500)) for after in (-1, 2, 3)]
    assert sizes == [2, 1, 1]
    assert [each.round for each in store.rounds(job_id, 0, 2, 10**6)] == [1, 2]
    assert store.count_record_bytes(job_id) > 10_000
    assert store.count_record_bytes("nobody") == 0
    seen, after = [], 0
    while page := store.events(job_id, after, 10, 3500):
        seen += [event.id for event in page]
        after = page[-1].id
    assert seen == [event.id for event in store.events(job_id)]


def test_the_lengths_of_rows_behind_a_page_are_not_read(store):
    """A row is read whole for its length, and 1,000 large ones take seconds: here the 40th has none."""
    job_id = running(store)
    for number in range(1, 42):
        store.add_round(job_id, record(number))
    length = 1000 + 0 // (40 - rounds.c.round)
    lengths = select(length).where(rounds.c.job_id == job_id).order_by(rounds.c.round)
    with store._engine.connect() as connection:
        assert count_rows_that_fit(connection, lengths, 3500) == 3
        with pytest.raises((TypeError, DBAPIError)):
            count_rows_that_fit(connection, lengths, 10**6)


def test_pages_of_large_specs_have_fewer_jobs(store):
    for number in range(4):
        store.create(parse_spec({"algorithm": "fedavg", "name": f"job {number}"}))
    size = store.list(order_by="name", limit=4, most_bytes=1)
    assert [job.name for job in size.jobs] == ["job 0"]
    rest = store.list(order_by="name", limit=4, page_token=size.next_page_token, most_bytes=10**6)
    assert [job.name for job in rest.jobs] == ["job 1", "job 2", "job 3"]
    assert rest.next_page_token is None
