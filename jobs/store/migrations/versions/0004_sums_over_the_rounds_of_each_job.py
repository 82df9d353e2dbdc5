"""sums over the rounds of each job.

Revision: 0004
Follows: 0003
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = ("rounds", "client_updates", "client_failures", "bytes_down", "bytes_up", "actor_restarts")
    real = tuple(f"seconds_{phase}" for phase in ("survey", "train", "server", "evaluate", "total"))
    table = op.create_table(
        "totals",
        sa.Column("job_id", sa.String(32), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in whole),
        *(sa.Column(name, sa.Float(), nullable=False) for name in real),
        sa.Column("queue_seconds", sa.Float()),
    )
    _count_what_there_is(table, whole, real)


def downgrade() -> None:
    op.drop_table("totals")


def _count_what_there_is(table: sa.Table, whole: tuple[str, ...], real: tuple[str, ...]) -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("id"), sa.column("created_at"), sa.column("submitted_at"))
    rounds = sa.table("rounds", sa.column("job_id"), sa.column("record", sa.JSON()))
    for job_id, created, submitted in connection.execute(sa.select(jobs)).all():
        if submitted is None:
            continue
        sums = dict.fromkeys((*whole, *real), 0)
        records = sa.select(rounds.c.record).where(rounds.c.job_id == job_id)
        for record in connection.execute(records).scalars():
            for name, amount in _amounts(record).items():
                sums[name] += amount
        waited = (_instant(submitted) - _instant(created)).total_seconds()
        connection.execute(sa.insert(table), {"job_id": job_id, **sums, "queue_seconds": waited})


def _amounts(record: dict) -> dict[str, float]:
    failed, seconds = len(record.get("failed", ())), record["seconds"]
    phases = ("survey", "train", "server", "evaluate", "total")
    return {
        "rounds": 1,
        "client_updates": record["cohort"] - failed,
        "client_failures": failed,
        "bytes_down": record["bytes"]["down"],
        "bytes_up": record["bytes"]["up"],
        "actor_restarts": record.get("engine", {}).get("restarts", 0),
        **{f"seconds_{phase}": seconds.get(phase, 0.0) for phase in phases},
    }


def _instant(value: str | datetime) -> datetime:
    """SQLite gives a text here, PostgreSQL an instant."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value
