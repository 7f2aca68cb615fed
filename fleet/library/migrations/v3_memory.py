"""Data learnt from records: their programs' features, facts about devices, snapshots of the cost model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "3"
down_revision = "2"


def upgrade() -> None:
    op.create_table(
        "record_programs",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        *required(sa.Text, "program_hash", "feature_version"),
        *required(sa.LargeBinary, "stores"),
    )
    op.create_table(
        "device_models",
        sa.Column("name", sa.Text, primary_key=True),
        *required(sa.Text, "facts"),
        *required(sa.DateTime, "seen_at"),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        *required(sa.LargeBinary, "content"),
        *required(sa.Text, "feature_version"),
        *required(sa.Integer, "record_count"),
        *required(sa.Text, "workloads"),
        *required(sa.Integer, "last_record_id"),
        *required(sa.Text, "metrics"),
        *required(sa.DateTime, "made_at"),
        sa.Column("published_at", sa.DateTime),
    )
    op.create_table(
        "trainer",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        *required(sa.Text, "holder"),
        *required(sa.DateTime, "expires_at"),
    )


def downgrade() -> None:
    """Drop the learnt data, which can be recomputed from the records."""
    for name in ("trainer", "snapshots", "device_models", "record_programs"):
        op.drop_table(name)
