"""What Alembic runs: the migrations on the connection it was given, or on the store of the environment."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from jobs.settings import Settings
from jobs.store.database import begin_migration, make_engine
from jobs.store.tables import UtcTime, metadata


def render_item(kind: str, item: Any, autogen_context: Any) -> str | Literal[False]:
    """Write our time type into revisions as what it is for a database."""
    if kind == "type" and isinstance(item, UtcTime):
        return "sa.DateTime(timezone=True)"
    return False


def run(connection: Connection) -> None:
    """Run the migrations in the transaction of the connection, or in one of their own."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        render_item=render_item,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = make_engine(Settings.from_env().database_url)
    with begin_migration(engine) as own:
        run(own)
    engine.dispose()
