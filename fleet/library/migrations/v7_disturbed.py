"""Disturbed records have a table; records of reverted jobs keep their kinds, since the jobs' orders tell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7"
down_revision = "6"


def upgrade() -> None:
    op.create_table(
        "disturbed_records",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    )
    op.execute(
        "INSERT INTO disturbed_records (record_id) SELECT id FROM records "
        """WHERE provenance LIKE '%"disturbances":[%' AND provenance NOT LIKE '%"disturbances":[]%'"""
    )
    op.execute("UPDATE records SET kind = substr(kind, 10) WHERE kind LIKE 'reverted %'")


def downgrade() -> None:
    """Give records of reverted jobs the kinds that version 6 skips; it finds disturbances in the provenance."""
    op.execute(
        "UPDATE records SET kind = 'reverted ' || kind "
        "WHERE job_id IN (SELECT job_id FROM job_orders WHERE reverted_at IS NOT NULL)"
    )
    op.drop_table("disturbed_records")
