"""Proofs of measured times by a clock outside the kernel's process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "6"
down_revision = "5"


def upgrade() -> None:
    op.create_table(
        "proofs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("target_key", sa.Text, nullable=False),
        sa.Column("device_model", sa.Text, nullable=False),
        sa.Column("tvm_version", sa.Text, nullable=False),
        sa.Column("trace_digest", sa.Text, nullable=False),
        sa.Column("is_proven", sa.Boolean, nullable=False),
        sa.Column("claimed_sec", sa.Float, nullable=False),
        sa.Column("measured_sec", sa.Float, nullable=False),
        sa.Column("least_sec", sa.Float, nullable=False),
        sa.Column("spread_sec", sa.Float, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("made_at", sa.DateTime, nullable=False),
        sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
    )


def downgrade() -> None:
    """Drop the proofs. Refuted candidates stay failed, with an error kind that version 5 knows."""
    op.execute("UPDATE records SET error = 'RUN_FAILED' WHERE error = 'TIME_NOT_PROVEN'")
    op.drop_table("proofs")
