"""Owners of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "5"
down_revision = "4"


def upgrade() -> None:
    op.create_table(
        "job_owners",
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
        *required(sa.Text, "key_id"),
    )


def downgrade() -> None:
    """Drop the owners: every account may change every job again."""
    op.drop_table("job_owners")
