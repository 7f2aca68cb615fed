"""Proofs of measured times by a clock outside the kernel's process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "6"
down_revision = "5"


def upgrade() -> None:
    op.create_table(
        "proofs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        *required(sa.Text, "target_key", "device_model", "tvm_version", "trace_digest"),
        *required(sa.Boolean, "is_proven"),
        *required(sa.Float, "claimed_sec", "measured_sec", "least_sec", "spread_sec"),
        *required(sa.Integer, "calls"),
        *required(sa.Text, "message"),
        *required(sa.DateTime, "made_at"),
        sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
    )


def downgrade() -> None:
    """Drop the proofs. Refuted candidates stay failed, with an error kind that version 5 knows."""
    op.execute("UPDATE records SET error = 'RUN_FAILED' WHERE error = 'TIME_NOT_PROVEN'")
    op.drop_table("proofs")
