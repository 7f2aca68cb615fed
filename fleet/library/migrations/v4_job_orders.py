"""Jobs that optimizers take from the library: orders, holders, claimed candidates, model files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    op.create_table(
        "job_orders",
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
        sa.Column("spec", sa.Text),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("is_queued", sa.Boolean, nullable=False),
        sa.Column("optimizer", sa.Text, nullable=False),
        sa.Column("claimed_until", sa.DateTime),
        sa.Column("is_stop_asked", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Text),
        sa.Column("report", sa.Text),
        sa.Column("reverted_at", sa.DateTime),
    )
    op.create_table(
        "optimizers",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("tracker", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_started_sec", sa.Float, nullable=False),
        sa.Column("started_at", sa.DateTime, nullable=False),
        sa.Column("alive_until", sa.DateTime, nullable=False),
    )
    op.create_table(
        "model_parts",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "candidate_claims",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("target_key", sa.Text, nullable=False),
        sa.Column("device_model", sa.Text, nullable=False),
        sa.Column("tvm_version", sa.Text, nullable=False),
        sa.Column("trace_digest", sa.Text, nullable=False),
        sa.Column("trace_json", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
    )
    op.create_index("candidate_claims_by_job", "candidate_claims", ["job_id"])


def downgrade() -> None:
    """Drop the queue; reverted records count again, and jobs that never ran or were cancelled become interrupted."""
    op.execute("UPDATE records SET kind = substr(kind, 10) WHERE kind LIKE 'reverted %'")
    op.execute("UPDATE jobs SET state = 'INTERRUPTED' WHERE state IN ('QUEUED', 'CANCELLED')")
    for name in ("candidate_claims", "model_parts", "optimizers", "job_orders"):
        op.drop_table(name)
