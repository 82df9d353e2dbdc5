"""The ledger of a run waits for a store that is away, and leaves alone a job that is another's by now."""

import pytest
from sqlalchemy.exc import OperationalError

from fedsim.errors import StoreError
from jobs import book
from jobs.book import Book, patiently
from jobs.spec import parse_spec
from jobs.states import JobState
from jobs.store import JobStore
from tests.thread_cluster import a_record


def away(times):
    """A call that the store answers after it has been away for so many attempts."""
    left = [None] * times

    def call():
        if left:
            left.pop()
            raise OperationalError("SELECT 1", {}, Exception("the connection is closed"))
        return "an answer"

    return call


def test_a_store_that_comes_back_is_waited_for(monkeypatch):
    monkeypatch.setattr(book, "PAUSE_SECONDS", 0.0)
    assert patiently(away(3)) == "an answer"
    with pytest.raises(OperationalError):
        patiently(away(3), seconds=-1.0)


def test_a_store_that_cannot_be_opened_yet_is_waited_for(monkeypatch):
    monkeypatch.setattr(book, "PAUSE_SECONDS", 0.0)
    opened = away(2)

    def open_store():
        try:
            return opened()
        except OperationalError as error:
            raise StoreError("cannot open the store") from error

    assert patiently(open_store) == "an answer"

    def newer():
        raise StoreError("the store is of another version of fedsim")

    with pytest.raises(StoreError, match="another version"):
        patiently(newer)


def test_a_run_that_was_given_up_changes_no_state(tmp_path):
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg", "rounds": 2}))[0].id
        store.start_next(1)
        mine = Book(store, job_id, f"fedsim-{job_id}-0")
        mine.working()
        mine.add(a_record(1))
        store.set_submission(job_id, f"fedsim-{job_id}-0")
        assert store.restart(job_id, 3, "killed", lost=f"fedsim-{job_id}-0")
        assert not mine.lost(3, RuntimeError("late"))
        mine.working()
        assert store.get(job_id).state is JobState.STARTING
        heir = Book(store, job_id, f"fedsim-{job_id}-1")
        assert (heir.known(), heir.marks(1), heir.marks(2)) == (1, a_record(1).marks(), None)
        heir.working()
        heir.add(a_record(2))
        assert (store.get(job_id).state, store.get(job_id).restarts) == (JobState.RUNNING, 1)


def test_a_restart_whose_answer_was_lost_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "PAUSE_SECONDS", 0.0)
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.start_next(1)
        store.set_submission(job_id, "mine")
        ledger, restart, lose = Book(store, job_id, "mine"), store.restart, away(1)

        def half_heard(*given, **more):
            done = restart(*given, **more)
            lose()
            return done

        monkeypatch.setattr(store, "restart", half_heard)
        assert ledger.lost(1, RuntimeError("the coordinator died"))
        assert store.get(job_id).restarts == 1
        assert not ledger.lost(1, RuntimeError("once too often"))
        assert ledger.lost(2, RuntimeError("the coordinator died"))
        assert store.get(job_id).restarts == 2
        assert not store.restart(job_id, 9, "another's", holder="another", seen=1)
        assert not store.restart(job_id, 9, "long ago", holder="mine", seen=0)
