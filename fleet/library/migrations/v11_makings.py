"""Object code, timing and artifacts of records, and records carried over from others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "11"
down_revision = "10"


def upgrade() -> None:
    op.create_table(
        "record_makings",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        *required(sa.Text, "object_digest", "version", "evaluator"),
    )
    op.create_table(
        "carried_records",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        sa.Column("from_id", sa.Integer, sa.ForeignKey("records.id"), nullable=False),
        *required(sa.DateTime, "carried_at"),
    )
    op.create_table(
        "record_artifacts",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        *required(sa.Text, "facts"),
        *required(sa.LargeBinary, "content"),
    )


def downgrade() -> None:
    for name in ("record_artifacts", "carried_records", "record_makings"):
        op.drop_table(name)
