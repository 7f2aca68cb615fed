"""Jobs, workloads and records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tvm_fleet_library",
        sa.Column("schema_version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("model_digest", sa.Text, nullable=False),
        sa.Column("conditions", sa.Text, nullable=False),
        sa.Column("tuner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_started_sec", sa.Float, nullable=False),
        sa.Column("trials_total", sa.Integer, nullable=False),
        sa.Column("started_at", sa.DateTime, nullable=False),
        sa.Column("touched_at", sa.DateTime, nullable=False),
        sa.Column("ended_at", sa.DateTime),
    )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("shash", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("mod_json", sa.LargeBinary, nullable=False),
        sa.Column("flop", sa.Float, nullable=False),
        sa.Column("args", sa.Text, nullable=False),
    )
    op.create_table(
        "job_workloads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.UniqueConstraint("job_id", "workload_id"),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.Text, nullable=False, unique=True),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id")),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("target_json", sa.Text, nullable=False),
        sa.Column("target_key", sa.Text, nullable=False),
        sa.Column("device_model", sa.Text, nullable=False),
        sa.Column("device_name", sa.Text, nullable=False),
        sa.Column("device_fingerprint", sa.Text, nullable=False),
        sa.Column("tvm_version", sa.Text, nullable=False),
        sa.Column("trace_json", sa.LargeBinary, nullable=False),
        sa.Column("trace_digest", sa.Text, nullable=False),
        sa.Column("run_secs", sa.Text, nullable=False),
        sa.Column("median_sec", sa.Float),
        sa.Column("error", sa.Text),
        sa.Column("error_message", sa.Text, nullable=False),
        sa.Column("artifact_digest", sa.Text, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("checked", sa.Boolean),
        sa.Column("created_at", sa.DateTime, nullable=False),
    )
    op.create_index("records_by_workload_median", "records", ["workload_id", "kind", "median_sec"])
    op.create_index("records_by_workload_trace", "records", ["workload_id", "trace_digest"])
    op.create_index("records_by_job", "records", ["job_id"])
    op.create_table(
        "model_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("untuned_ms", sa.Float),
        sa.Column("tuned_ms", sa.Float),
        sa.Column("onnxruntime_ms", sa.Float),
        sa.Column("max_abs_error", sa.Float),
        sa.Column("created_at", sa.DateTime, nullable=False),
    )
    op.create_index("model_runs_by_job", "model_runs", ["job_id"])
