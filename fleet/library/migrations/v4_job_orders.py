"""Jobs that optimizers take from the library: orders, holders, claimed candidates, model files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "4"
down_revision = "3"


def upgrade() -> None:
    op.create_table(
        "job_orders",
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
        sa.Column("spec", sa.Text),
        *required(sa.Integer, "priority"),
        *required(sa.Boolean, "is_queued"),
        *required(sa.Text, "optimizer"),
        sa.Column("claimed_until", sa.DateTime),
        *required(sa.Boolean, "is_stop_asked"),
        sa.Column("progress", sa.Text),
        sa.Column("report", sa.Text),
        sa.Column("reverted_at", sa.DateTime),
    )
    op.create_table(
        "optimizers",
        sa.Column("name", sa.Text, primary_key=True),
        *required(sa.Text, "tracker", "holder", "host"),
        *required(sa.Integer, "pid"),
        *required(sa.Float, "process_started_sec"),
        *required(sa.DateTime, "started_at", "alive_until"),
    )
    op.create_table(
        "model_parts",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        *required(sa.LargeBinary, "content"),
    )
    op.create_table(
        "candidate_claims",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        *required(sa.Text, "target_key", "device_model", "tvm_version", "trace_digest"),
        *required(sa.LargeBinary, "trace_json"),
        sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
    )
    op.create_index("candidate_claims_by_job", "candidate_claims", ["job_id"])


def downgrade() -> None:
    """Drop the queue; reverted records count again, and jobs that never ran or were cancelled become interrupted."""
    op.execute("UPDATE records SET kind = substr(kind, 10) WHERE kind LIKE 'reverted %'")
    op.execute("UPDATE jobs SET state = 'INTERRUPTED' WHERE state IN ('QUEUED', 'CANCELLED')")
    for name in ("candidate_claims", "model_parts", "optimizers", "job_orders"):
        op.drop_table(name)
