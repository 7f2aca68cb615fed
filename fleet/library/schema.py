"""Tables of the library, the same in SQLite and PostgreSQL.

Only the `uid` of a record is unique. The same candidate measured again, by the same job or another, is another
observation; which one counts is decided when reading. The `uid` lets a writer repeat a store after its answer was lost.
"""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

SCHEMA_VERSION = 7
"""Incremented with every change that older or newer programs cannot read; `fleet.library.migrations` has a file for
each.
"""

OLDEST_VERSION = 1
"""Libraries from this version on become ones of today's when they are opened; those that cannot be written are read as
they are."""


class UtcDateTime(sa.TypeDecorator[datetime]):
    """Aware times, stored in UTC without a zone because SQLite has none."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class JsonText(sa.TypeDecorator[object]):
    """JSON in a text column: PostgreSQL's own type refuses the NaN and the zero bytes that devices report."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: sa.Dialect) -> str:
        return json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> object:
        return None if value is None else json.loads(value)


class CompressedText(sa.TypeDecorator[str]):
    """Long text: the JSON of a program is 20-100 kB, and a tenth of that compressed."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes:
        return zlib.compress((value or "").encode())

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str:
        return zlib.decompress(value or b"").decode() if value else ""


metadata = sa.MetaData()

library = sa.Table(
    "tvm_fleet_library",
    metadata,
    sa.Column("schema_version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("model_digest", sa.Text, nullable=False),
    sa.Column("conditions", JsonText, nullable=False),
    sa.Column("tuner", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    # distinguishes the process from a later one with the same pid
    sa.Column("process_started_sec", sa.Float, nullable=False),
    sa.Column("trials_total", sa.Integer, nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("touched_at", UtcDateTime, nullable=False),
    sa.Column("ended_at", UtcDateTime),
)

job_orders = sa.Table(
    "job_orders",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    sa.Column("spec", JsonText),  # job specification for an optimizer; null: it cannot be run again from here
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("is_queued", sa.Boolean, nullable=False),  # submitted: an optimizer will run it
    sa.Column("optimizer", sa.Text, nullable=False),
    sa.Column("claimed_until", UtcDateTime),
    sa.Column("is_stop_asked", sa.Boolean, nullable=False),
    sa.Column("progress", JsonText),
    sa.Column("report", JsonText),
    sa.Column("reverted_at", UtcDateTime),
)

job_owners = sa.Table(
    "job_owners",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    sa.Column("key_id", sa.Text, nullable=False),  # key of the account that started or submitted it
)

optimizers = sa.Table(
    "optimizers",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("tracker", sa.Text, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_started_sec", sa.Float, nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("alive_until", UtcDateTime, nullable=False),
)

model_parts = sa.Table(
    "model_parts",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("shash", sa.Text, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("mod_json", CompressedText, nullable=False),
    sa.Column("flop", sa.Float, nullable=False),
    sa.Column("args", JsonText, nullable=False),
)

job_workloads = sa.Table(
    "job_workloads",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.UniqueConstraint("job_id", "workload_id"),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.Text, nullable=False, unique=True),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("target_json", sa.Text, nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("device_model", sa.Text, nullable=False),
    sa.Column("device_name", sa.Text, nullable=False),
    sa.Column("device_fingerprint", sa.Text, nullable=False),
    sa.Column("tvm_version", sa.Text, nullable=False),
    sa.Column("trace_json", CompressedText, nullable=False),
    sa.Column("trace_digest", sa.Text, nullable=False),
    sa.Column("run_secs", JsonText, nullable=False),
    sa.Column("median_sec", sa.Float),  # NULL when there is an error
    sa.Column("error", sa.Text),
    sa.Column("error_message", sa.Text, nullable=False),
    sa.Column("artifact_digest", sa.Text, nullable=False),
    sa.Column("provenance", JsonText, nullable=False),
    sa.Column("checked", sa.Boolean),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("records_by_workload_median", "workload_id", "kind", "median_sec"),
    sa.Index("records_by_workload_trace", "workload_id", "trace_digest"),
    sa.Index("records_by_job", "job_id"),
)

disturbed_records = sa.Table(
    "disturbed_records",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
)

candidate_claims = sa.Table(
    "candidate_claims",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("device_model", sa.Text, nullable=False),
    sa.Column("tvm_version", sa.Text, nullable=False),
    sa.Column("trace_digest", sa.Text, nullable=False),
    sa.Column("trace_json", CompressedText, nullable=False),
    sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
    sa.Index("candidate_claims_by_job", "job_id"),
)

model_runs = sa.Table(
    "model_runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("untuned_ms", sa.Float),
    sa.Column("tuned_ms", sa.Float),
    sa.Column("onnxruntime_ms", sa.Float),
    sa.Column("max_abs_error", sa.Float),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("model_runs_by_job", "job_id"),
)

record_programs = sa.Table(
    "record_programs",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    sa.Column("program_hash", sa.Text, nullable=False),
    sa.Column("feature_version", sa.Text, nullable=False),
    sa.Column("stores", sa.LargeBinary, nullable=False),
)

proofs = sa.Table(
    "proofs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("device_model", sa.Text, nullable=False),
    sa.Column("tvm_version", sa.Text, nullable=False),
    sa.Column("trace_digest", sa.Text, nullable=False),
    sa.Column("is_proven", sa.Boolean, nullable=False),  # False: refuted
    sa.Column("claimed_sec", sa.Float, nullable=False),
    sa.Column("measured_sec", sa.Float, nullable=False),
    sa.Column("least_sec", sa.Float, nullable=False),  # shortest time that this proof supports
    sa.Column("spread_sec", sa.Float, nullable=False),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
)

device_models = sa.Table(
    "device_models",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("facts", JsonText, nullable=False),
    sa.Column("seen_at", UtcDateTime, nullable=False),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("feature_version", sa.Text, nullable=False),
    sa.Column("record_count", sa.Integer, nullable=False),
    sa.Column("workloads", JsonText, nullable=False),
    sa.Column("last_record_id", sa.Integer, nullable=False),
    sa.Column("metrics", JsonText, nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
    sa.Column("published_at", UtcDateTime),  # NULL while another snapshot ranks better
)

trainer = sa.Table(
    "trainer",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # one row, 1
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)


def has_table(connection: sa.Connection, table: sa.Table) -> bool:
    """Tell whether the library has a table. An older, read-only library lacks some.

    Each database connection remembers the tables that it has: asking takes longer than a small query.
    """
    known: set[str] = connection.info.setdefault("fleet_tables", set())
    if table.name not in known and sa.inspect(connection).has_table(table.name):
        known.add(table.name)
    return table.name in known


def insert_into(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return the dialect's INSERT, for ON CONFLICT: both dialects share the syntax, but SQLAlchemy has no common
    construct.
    """
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
