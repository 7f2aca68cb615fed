"""Data learnt from records: their programs' features, facts about devices, snapshots of the cost model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    op.create_table(
        "record_programs",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        sa.Column("program_hash", sa.Text, nullable=False),
        sa.Column("feature_version", sa.Text, nullable=False),
        sa.Column("stores", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "device_models",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("seen_at", sa.DateTime, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("feature_version", sa.Text, nullable=False),
        sa.Column("record_count", sa.Integer, nullable=False),
        sa.Column("workloads", sa.Text, nullable=False),
        sa.Column("last_record_id", sa.Integer, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("made_at", sa.DateTime, nullable=False),
        sa.Column("published_at", sa.DateTime),
    )
    op.create_table(
        "trainer",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", sa.DateTime, nullable=False),
    )


def downgrade() -> None:
    """Drop the learnt data, which can be recomputed from the records."""
    for name in ("trainer", "snapshots", "device_models", "record_programs"):
        op.drop_table(name)
