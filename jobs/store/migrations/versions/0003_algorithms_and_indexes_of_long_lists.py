"""algorithms, and indexes of long lists.

Revision: 0003
Follows: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAMES = {
    "sqlite": "json_extract(spec, '$.algorithm.name')",
    "postgresql": "spec -> 'algorithm' ->> 'name'",
}
"""How each database reads the name out of the spec of a job that was there before."""


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("algorithm", sa.String(length=100), server_default="", nullable=False))
    op.execute(f"UPDATE jobs SET algorithm = COALESCE({NAMES[op.get_bind().dialect.name]}, '')")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("jobs_by_algorithm", ["algorithm", "created_at", "id"], unique=False)
        batch_op.create_index("jobs_by_state_and_age", ["state", "created_at", "id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("jobs_by_state_and_age")
        batch_op.drop_index("jobs_by_algorithm")
        batch_op.drop_column("algorithm")
