"""Opening a database: connection settings, transactions that several processes share, and migrations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from fedsim.base.secret_urls import find_secrets, hide_secrets, remove_secrets
from fedsim.errors import StoreError, StoreUnusable
from jobs.store.tables import HEAD

BUSY_SECONDS = 30
MIGRATION_LOCK = 0x66656473

LIBPQ = frozenset({"psycopg", "psycopg2"})
"""The PostgreSQL drivers that take libpq's parameters."""

CONNECTION_PARAMETERS: Mapping[str, int] = MappingProxyType(
    {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
)
"""Parameters of a connection to PostgreSQL: it fails after half a minute without an answer of the server.

In seconds; the last one in milliseconds. Without them the system waits for hours."""

SESSION_TIMEOUTS: Mapping[str, str] = MappingProxyType(
    {"lock_timeout": f"{BUSY_SECONDS}s", "idle_in_transaction_session_timeout": "60s"}
)
"""Settings of a PostgreSQL session: the longest wait for a lock, and the longest idle transaction."""

PASSING_CODES = frozenset({"25P03", "25006"})
"""PostgreSQL's codes for a session that it ended because a transaction was idle for too long, and for a
server that takes no writes, such as a replica before it is promoted."""

DISK_FULL_CODES = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "53100"})
"""The codes of SQLite and PostgreSQL for a full disk; the second one is for SQLite's shared-memory index."""

DAMAGE_CODES = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""The beginnings of SQLite's codes for a damaged file, and for a file that is no database."""

DISK_FULL_HINT = "free space on the disk of FEDSIM_HOME, or of the database that FEDSIM_DATABASE_URL names"

DAMAGE_HINT = (
    "stop the service; put back a copy that `fedsim backup` made, or remove the file and let "
    "`fedsim recover` read the folders of the jobs"
)

NO_ANSWER_ERRORS = (OperationalError, InterfaceError, NoConnection)
"""Errors for a database that does not answer, or without a free connection: a later call may succeed."""


def open_database(url: str) -> Engine:
    """Open the database at a URL, and migrate it to the newest schema.

    Raises:
        StoreError: if the URL is wrong, or the database does not answer or is newer than this fedsim.
        StoreUnusable: if the disk is too full to open it, or its file is damaged.
    """
    engine = make_engine(url)
    try:
        migrate(engine)
    except DBAPIError as error:
        engine.dispose()
        shown = remove_secrets(engine.url.render_as_string(hide_password=True))
        cause = hide_secrets(str(error.orig), find_secrets(url))
        raise StoreError(f"cannot open the store {shown}: {cause}", "check FEDSIM_DATABASE_URL") from error
    except StoreUnusable as error:
        engine.dispose()
        shown = remove_secrets(engine.url.render_as_string(hide_password=True))
        raise StoreUnusable(f"cannot open the store {shown}: {error.message}", error.hint) from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def make_write_engine(engine: Engine) -> Engine:
    """Make an engine for transactions that write: SQLite takes its write lock when they begin.

    Otherwise a transaction that reads first and writes later fails at once if another process has written in
    between, whatever the busy timeout is.
    """
    return engine.execution_options(fedsim_writes=True)


@contextmanager
def begin_migration(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that may rebuild tables.

    SQLite changes a column by copying the table and dropping the old one, and the drop would delete the rows
    that refer to it. Foreign keys are therefore off, which SQLite can only set between transactions.
    """
    with make_write_engine(engine).execution_options(fedsim_migrates=True).begin() as connection:
        yield connection
    # The old connections have foreign keys off: drop them, so that new connections enforce the keys.
    engine.dispose()


def make_engine(url: str) -> Engine:
    """Make an engine for a database URL, without a migration.

    Raises:
        StoreError: if the URL is wrong, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ArgumentError(f"{parsed.get_backend_name()!r} is neither sqlite nor postgresql")
        # Each thread of the API holds a connection for a moment; the threads must not wait for the pool.
        options = _make_connection_parameters(parsed)
        engine = create_engine(parsed, pool_size=5, max_overflow=40, pool_pre_ping=True, connect_args=options)
    except (ArgumentError, ImportError, OSError) as error:
        hint = "for example sqlite:////var/lib/fedsim/fedsim.db or postgresql://user@host/fedsim"
        raise StoreError(f"cannot use the database URL: {error}", hint) from error
    event.listen(engine, "handle_error", _translate_lasting_error, retval=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _prepare_postgresql)
        event.listen(engine, "handle_error", _translate_passing_error, retval=True)
    return engine


def _make_connection_parameters(url: URL) -> dict[str, Any]:
    """Return the driver's parameters that the URL does not set itself."""
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in LIBPQ:
        return {}
    return {name: value for name, value in CONNECTION_PARAMETERS.items() if name not in url.query}


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    """Set the timeouts of a session that neither the URL nor the server has set.

    A statement sets them, because a connection pooler may refuse them as connection parameters.
    """
    with connection.cursor() as cursor:
        for name, value in SESSION_TIMEOUTS.items():
            unset = "SELECT set_config(%s, %s, false) WHERE current_setting(%s) = '0'"
            cursor.execute(unset, (name, value, name))
    connection.commit()


def _translate_lasting_error(context: ExceptionContext) -> Exception | None:
    """Turn the driver's error for a full disk or a damaged file into `StoreUnusable`: no repetition helps."""
    error = context.original_exception
    code = getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None) or ""
    if code in DISK_FULL_CODES:
        return StoreUnusable(f"the store's disk is full: {error}", DISK_FULL_HINT)
    if code.startswith(DAMAGE_CODES):
        return StoreUnusable(f"the store is damaged: {error}", DAMAGE_HINT)
    return None


def _translate_passing_error(context: ExceptionContext) -> Exception | None:
    """Turn an error that a new session may not meet into an `OperationalError`, which is retried."""
    error = context.original_exception
    if getattr(error, "sqlstate", None) not in PASSING_CODES:
        return None
    context.is_disconnect = True
    return OperationalError(context.statement, None, error)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Set up a SQLite connection; fedsim begins the transactions, not the driver."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    _use_write_ahead_log(connection)


def _use_write_ahead_log(connection: Any) -> None:
    """Switch to WAL. The busy timeout does not cover this switch, so repeat it while the file is locked."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes = options.get("fedsim_writes", False)
    if options.get("fedsim_migrates", False):
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def migrate(engine: Engine) -> None:
    """Migrate the schema to the newest version; of several processes one migrates, and the others wait.

    Raises:
        StoreError: if a newer fedsim wrote the database.
    """
    with engine.connect() as connection:
        if _read_version(connection) == HEAD:
            return
    with begin_migration(engine) as connection:
        if connection.dialect.name == "postgresql":
            # No timeout: another process may need long to migrate a large store.
            connection.execute(text("SET LOCAL lock_timeout = 0"))
        lock_until_commit(connection, MIGRATION_LOCK)
        if _read_version(connection) != HEAD:
            _upgrade_schema(connection)


def lock_until_commit(connection: Connection, key: int) -> None:
    """Hold a lock of PostgreSQL until the transaction ends; SQLite has one writer at a time anyway.

    Args:
        connection: inside a transaction that writes.
        key: any fixed number, the same in all processes.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def _read_version(connection: Connection) -> str | None:
    """Return the revision of a database, None for an empty one; a query is faster than importing Alembic."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


def alembic_config(connection: Connection) -> Any:
    """Make Alembic's configuration for the migrations of this package, on an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "jobs.store:migrations")
    config.attributes["connection"] = connection
    return config


def _upgrade_schema(connection: Connection) -> None:
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(alembic_config(connection), "head")
    except CommandError as error:
        hint = "open it with that fedsim, or name another database"
        raise StoreError(
            f"the store is of another version of fedsim than this one ({error})", hint
        ) from error
