"""Fragments: the imported operators behind each workload, for each target."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "12"
down_revision = "11"


def upgrade() -> None:
    op.create_table(
        "workload_fragments",
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), primary_key=True, autoincrement=False),
        sa.Column("target_key", sa.Text, primary_key=True),
        *required(sa.LargeBinary, "content"),
    )


def downgrade() -> None:
    op.drop_table("workload_fragments")
