"""Empty databases for tests: SQLite, and PostgreSQL where FEDSIM_TEST_POSTGRES_URL names a server.

The tests of the store run on both. With FEDSIM_TEST_STORE=postgres, whole services run on PostgreSQL as well.
"""

import os
import secrets
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url, text

from jobs.database import make_engine

POSTGRES = os.environ.get("FEDSIM_TEST_POSTGRES_URL", "")
NO_POSTGRES = "FEDSIM_TEST_POSTGRES_URL names no PostgreSQL to test on"

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(not POSTGRES, reason=NO_POSTGRES))]
"""For `params` of a fixture whose tests run on both."""


@contextmanager
def empty_database(kind, folder):
    """The URL of a database of this kind that has no tables yet; SQLite's file is in the folder."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'home' / 'fedsim.db'}"
        return
    name = f"fedsim_{os.getpid()}_{secrets.token_hex(6)}"
    server = make_engine(POSTGRES).execution_options(isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()


@contextmanager
def service_database(folder):
    """The URL of an empty database for a service whose home the folder is; see FEDSIM_TEST_STORE above."""
    if os.environ.get("FEDSIM_TEST_STORE", "sqlite") == "sqlite":
        yield f"sqlite:///{folder / 'fedsim.db'}"
        return
    if not POSTGRES:
        pytest.skip(NO_POSTGRES)
    with empty_database("postgres", folder) as url:
        yield url
