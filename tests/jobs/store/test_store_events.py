"""Rounds and events in the job store: once each, numbered without gaps."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedsim.errors import Conflict
from jobs.store.records import RoundRecord
from jobs.store.states import JobState
from tests.jobs.stored import record, running


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
    assert "digest d0 stays, other0 is ignored" in warning.data["message"]


def test_nothing_follows_the_terminal_event(store):
    job_id = running(store)
    store.add_round(job_id, record(0))
    store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
    assert not store.add_round(job_id, record(0, digest="other"))
    assert not store.add_warning(job_id, "too late")
    with pytest.raises(Conflict, match="no more rounds"):
        store.add_round(job_id, record(1))
    assert store.events(job_id)[-1].data["terminal"] is True


def test_events_are_numbered_without_gaps_whoever_writes(store):
    job_id = running(store)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: store.add_round(job_id, record(n)), range(24)))
        list(threads.map(lambda n: store.add_warning(job_id, f"w{n}"), range(8)))
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
        list(threads.map(lambda n: store.add_warning(job_id, f"w{n}"), range(40)))
    done.set()
    reader.join(timeout=20)
    assert seen == list(range(1, 44))
