"""Jobs, workloads and records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "1"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tvm_fleet_library",
        sa.Column("schema_version", sa.Integer, primary_key=True, autoincrement=False),
        *required(sa.DateTime, "created_at"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        *required(sa.Text, "title", "model_digest", "conditions", "tuner", "state", "message", "holder", "host"),
        *required(sa.Integer, "pid"),
        *required(sa.Float, "process_started_sec"),
        *required(sa.Integer, "trials_total"),
        *required(sa.DateTime, "started_at", "touched_at"),
        sa.Column("ended_at", sa.DateTime),
    )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("shash", sa.Text, nullable=False, unique=True),
        *required(sa.Text, "name"),
        *required(sa.LargeBinary, "mod_json"),
        *required(sa.Float, "flop"),
        *required(sa.Text, "args"),
    )
    op.create_table(
        "job_workloads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        *required(sa.Float, "weight"),
        sa.UniqueConstraint("job_id", "workload_id"),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.Text, nullable=False, unique=True),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id")),
        *required(
            sa.Text,
            "kind",
            "target_json",
            "target_key",
            "device_model",
            "device_name",
            "device_fingerprint",
            "tvm_version",
        ),
        *required(sa.LargeBinary, "trace_json"),
        *required(sa.Text, "trace_digest", "run_secs"),
        sa.Column("median_sec", sa.Float),
        sa.Column("error", sa.Text),
        *required(sa.Text, "error_message", "artifact_digest", "provenance"),
        sa.Column("checked", sa.Boolean),
        *required(sa.DateTime, "created_at"),
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
        *required(sa.DateTime, "created_at"),
    )
    op.create_index("model_runs_by_job", "model_runs", ["job_id"])
