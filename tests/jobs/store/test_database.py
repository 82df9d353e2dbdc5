"""The database behind the job store: opened by many, migrated there and back, and refused by name."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from fedsim.errors import StoreError
from jobs.store import database, tables
from jobs.store.database import alembic_config, begin_migration, make_engine, make_write_engine, open_database
from jobs.store.job_store import JobStore
from jobs.store.queue_order import QUEUE_LOCK
from jobs.store.states import JobState
from jobs.store.tables import HEAD
from tests.databases import NO_POSTGRES, POSTGRES, empty_database
from tests.jobs.stored import SPEC, record, running


def test_two_openers_of_an_empty_database_both_get_it(url):
    code = (
        "import sys; from jobs.store.job_store import JobStore;"
        "print(len(JobStore.open(sys.argv[1]).list().jobs))"
    )
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
        "import sys\nfrom jobs.store.job_store import JobStore\nfrom tests.jobs.stored import record\n"
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
    engine = open_database(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == HEAD
        assert ScriptDirectory.from_config(alembic_config(connection)).get_heads() == [HEAD]
    engine.dispose()


def test_migrations_go_back_to_nothing(url):
    from alembic import command

    engine = open_database(url)
    with begin_migration(engine) as connection:
        command.downgrade(alembic_config(connection), "base")
    engine.dispose()
    engine = open_database(url)
    engine.dispose()


def test_rounds_of_an_older_database_are_counted(url, store):
    from alembic import command

    job_id = running(store)
    store.create(SPEC)
    for number in (1, 2):
        store.add_round(job_id, record(number))
    counted = store.totals()
    engine = open_database(url)
    with make_write_engine(engine).begin() as connection:
        command.downgrade(alembic_config(connection), "0003")
    engine.dispose()
    with JobStore.open(url) as upgraded:
        again = upgraded.totals()
    assert again.sums == counted.sums
    assert again.sums["rounds"] == 2
    assert (again.waited, again.waits) == (1, counted.waits)
    assert again.wait_seconds == pytest.approx(counted.wait_seconds, abs=0.01)


def test_a_store_of_a_newer_version_is_refused(url):
    engine = open_database(url)
    with make_write_engine(engine).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="another version of fedsim"):
        JobStore.open(url)


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "jobs.db").write_text("a letter to somebody\n" * 100)
    with pytest.raises(StoreError, match=r"cannot open the store .*jobs\.db: .*file is not a database"):
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


def test_a_postgresql_that_falls_silent_is_given_up_soon():
    told = {}

    class Reached(Exception):
        pass

    def reach(*_, **parameters):
        told.clear()
        told.update(parameters)
        raise Reached

    for url, idle in (("postgresql://u@h/db", 10), ("postgresql://u@h/db?keepalives_idle=77", "77")):
        engine = make_engine(url)
        engine.dialect.loaded_dbapi.connect, connect_anew = reach, engine.dialect.loaded_dbapi.connect
        try:
            with pytest.raises(Reached):
                engine.connect()
        finally:
            engine.dialect.loaded_dbapi.connect = connect_anew
        assert (told["connect_timeout"], told["tcp_user_timeout"]) == (10, 30_000)
        assert (told["keepalives_idle"], told["keepalives_interval"], told["keepalives_count"]) == (
            idle,
            5,
            3,
        )


@pytest.fixture
def postgres_url(tmp_path):
    if not POSTGRES:
        pytest.skip(NO_POSTGRES)
    with empty_database("postgres", tmp_path) as made:
        yield made


def test_locks_of_postgresql_are_waited_for_and_held_for_so_long_only(postgres_url, monkeypatch):
    monkeypatch.setattr(
        database, "SESSION_TIMEOUTS", {"lock_timeout": "200ms", "idle_in_transaction_session_timeout": "2s"}
    )
    lock = text("SELECT pg_advisory_xact_lock(7)")
    engine = make_engine(postgres_url)
    with engine.connect() as holder, engine.connect() as other:
        holder.execute(lock)
        # What `patiently` waits for, and the API answers with a 503.
        with pytest.raises(OperationalError, match="lock timeout"):
            other.execute(lock)
        other.rollback()
        time.sleep(3)
        with pytest.raises(OperationalError, match="idle-in-transaction"):
            holder.execute(lock)
    with engine.begin() as another:
        another.execute(lock)
    engine.dispose()


def test_a_postgresql_that_takes_no_writes_for_a_moment_is_asked_again(postgres_url):
    engine = make_engine(postgres_url)
    with engine.connect() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        # What `patiently` waits for, and the API answers with a 503.
        with pytest.raises(OperationalError, match="read-only transaction"):
            connection.execute(text("CREATE TABLE later (id int)"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE later (id int)"))
    engine.dispose()


def test_only_one_dispatcher_at_a_time_writes_why_jobs_wait(postgres_url, monkeypatch):
    """Two would lock the rows of the jobs in different orders, and wait for each other."""
    monkeypatch.setattr(database, "SESSION_TIMEOUTS", {"lock_timeout": "100ms"})
    engine = make_engine(postgres_url)
    with JobStore.open(postgres_url) as store, engine.begin() as other:
        other.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": QUEUE_LOCK})
        with pytest.raises(OperationalError, match="lock timeout"):
            store.write_waiting_reasons({"a": "b"})
    engine.dispose()


def test_the_settings_of_a_postgresql_url_stand(postgres_url):
    url = make_url(postgres_url).update_query_dict({"options": "-c lock_timeout=7s"})
    engine = make_engine(url.render_as_string(hide_password=False))
    with engine.connect() as connection:
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "7s"
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == "1min"
    engine.dispose()


def test_who_opens_a_postgresql_waits_for_whoever_migrates_it(postgres_url, monkeypatch):
    monkeypatch.setattr(database, "SESSION_TIMEOUTS", {"lock_timeout": "100ms"})
    engine = make_engine(postgres_url)
    with ThreadPoolExecutor(1) as threads, engine.begin() as migrates:
        migrates.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": database.MIGRATION_LOCK})
        opened = threads.submit(JobStore.open, postgres_url)
        with pytest.raises(TimeoutError):
            opened.result(1.0)
        migrates.rollback()
        with opened.result(30) as store:
            assert store.count(set(JobState)) == 0
    engine.dispose()
