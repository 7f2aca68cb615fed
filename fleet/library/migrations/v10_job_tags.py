"""Tags of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "10"
down_revision = "9"


def upgrade() -> None:
    op.create_table(
        "job_tags",
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
        sa.Column("tag", sa.Text, primary_key=True),
    )


def downgrade() -> None:
    op.drop_table("job_tags")
