"""Tables of the library, the same in SQLite and PostgreSQL.

Only the `uid` of a record is unique. The same candidate measured again, by the same job or another, is another
observation; which one counts is decided when reading. The `uid` lets a writer repeat a store after its answer was lost.
"""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

SCHEMA_VERSION = 12
"""Incremented with every change that older or newer programs cannot read; `fleet.library.migrations` has a file for
each.
"""

OLDEST_VERSION = 1
"""Oldest version that is migrated when a library is opened. Libraries without write access are read as they are."""


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

    def __init__(self, level: int = 6) -> None:
        """Compress with zlib at this level."""
        super().__init__()
        self.level = level

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes:
        return zlib.compress((value or "").encode(), self.level)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str:
        return zlib.decompress(value or b"").decode() if value else ""


def required(kind: type[sa.types.TypeEngine[Any]], *names: str) -> list[sa.Column[Any]]:
    """Return columns of one type that are never NULL."""
    return [sa.Column(name, kind, nullable=False) for name in names]


metadata = sa.MetaData()

library = sa.Table(
    "tvm_fleet_library",
    metadata,
    sa.Column("schema_version", sa.Integer, primary_key=True, autoincrement=False),
    *required(UtcDateTime, "created_at"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *required(sa.Text, "title", "model_digest"),
    *required(JsonText, "conditions"),
    *required(sa.Text, "tuner", "state", "message", "holder", "host"),
    *required(sa.Integer, "pid"),
    *required(sa.Float, "process_started_sec"),  # distinguishes the process from a later one with the same pid
    *required(sa.Integer, "trials_total"),
    *required(UtcDateTime, "started_at", "touched_at"),
    sa.Column("ended_at", UtcDateTime),
)

job_orders = sa.Table(
    "job_orders",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    sa.Column("spec", JsonText),  # job specification for an optimizer; null: it cannot be run again from here
    *required(sa.Integer, "priority"),
    *required(sa.Boolean, "is_queued"),  # submitted: an optimizer will run it
    *required(sa.Text, "optimizer"),
    sa.Column("claimed_until", UtcDateTime),
    *required(sa.Boolean, "is_stop_asked"),
    sa.Column("progress", JsonText),
    sa.Column("report", JsonText),
    sa.Column("reverted_at", UtcDateTime),
)

job_owners = sa.Table(
    "job_owners",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    *required(sa.Text, "key_id"),  # key of the account that started or submitted it
)

job_tags = sa.Table(
    "job_tags",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    sa.Column("tag", sa.Text, primary_key=True),
)

optimizers = sa.Table(
    "optimizers",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *required(sa.Text, "tracker", "holder", "host"),
    *required(sa.Integer, "pid"),
    *required(sa.Float, "process_started_sec"),
    *required(UtcDateTime, "started_at", "alive_until"),
)

model_parts = sa.Table(
    "model_parts",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    *required(sa.LargeBinary, "content"),
)

workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("shash", sa.Text, nullable=False, unique=True),
    *required(sa.Text, "name"),
    *required(CompressedText, "mod_json"),
    *required(sa.Float, "flop"),
    *required(JsonText, "args"),
)

workload_fragments = sa.Table(  # see fleet.fragments.stored
    "workload_fragments",
    metadata,
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), primary_key=True, autoincrement=False),
    sa.Column("target_key", sa.Text, primary_key=True),
    *required(sa.LargeBinary, "content"),
)

job_workloads = sa.Table(
    "job_workloads",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    *required(sa.Float, "weight"),
    sa.UniqueConstraint("job_id", "workload_id"),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.Text, nullable=False, unique=True),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    *required(
        sa.Text, "kind", "target_json", "target_key", "device_model", "device_name", "device_fingerprint", "tvm_version"
    ),
    sa.Column("trace_json", CompressedText(level=3), nullable=False),  # 13 % larger than at level 6, in half the time
    *required(sa.Text, "trace_digest"),
    *required(JsonText, "run_secs"),
    sa.Column("median_sec", sa.Float),  # NULL when there is an error
    sa.Column("error", sa.Text),
    *required(sa.Text, "error_message", "artifact_digest"),
    *required(JsonText, "provenance"),
    sa.Column("checked", sa.Boolean),
    *required(UtcDateTime, "created_at"),
    sa.Index("records_by_workload_median", "workload_id", "kind", "median_sec"),
    sa.Index("records_by_workload_trace", "workload_id", "trace_digest"),
    sa.Index("records_by_job", "job_id"),
)

record_scopes = sa.Table(  # see `fleet.library.scope_times`
    "record_scopes",
    metadata,
    sa.Column("job_id", sa.Integer, primary_key=True, autoincrement=False),  # 0: of no job
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "target_key", "device_model", "tvm_version")),
    *required(sa.Text, "target_json"),
    *required(sa.Integer, "times", "first_id"),
)

disturbed_records = sa.Table(
    "disturbed_records",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
)

environments = sa.Table(
    "environments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    *required(JsonText, "facts"),
)

record_environments = sa.Table(
    "record_environments",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    sa.Column("environment_id", sa.ForeignKey("environments.id"), nullable=False),
)

device_environments = sa.Table(  # of the newest record of each device
    "device_environments",
    metadata,
    sa.Column("device_model", sa.Text, primary_key=True),
    sa.Column("device_name", sa.Text, primary_key=True),
    sa.Column("environment_id", sa.ForeignKey("environments.id"), nullable=False),
    *required(UtcDateTime, "seen_at"),
)

record_makings = sa.Table(  # see fleet.domain.making
    "record_makings",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    *required(sa.Text, "object_digest", "version"),
    *required(JsonText, "evaluator"),
)

carried_records = sa.Table(  # see fleet.library.carrying
    "carried_records",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    sa.Column("from_id", sa.ForeignKey("records.id"), nullable=False),
    *required(UtcDateTime, "carried_at"),
)

record_artifacts = sa.Table(  # of the best schedules of each scope
    "record_artifacts",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    *required(sa.Text, "facts"),
    *required(sa.LargeBinary, "content"),
)

candidate_claims = sa.Table(
    "candidate_claims",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    *required(sa.Text, "target_key", "device_model", "tvm_version", "trace_digest"),
    *required(CompressedText, "trace_json"),
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
    *required(UtcDateTime, "created_at"),
    sa.Index("model_runs_by_job", "job_id"),
)

record_programs = sa.Table(
    "record_programs",
    metadata,
    sa.Column("record_id", sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
    *required(sa.Text, "program_hash", "feature_version"),
    *required(sa.LargeBinary, "stores"),
)

proofs = sa.Table(
    "proofs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("workload_id", sa.ForeignKey("workloads.id"), nullable=False),
    *required(sa.Text, "target_key", "device_model", "tvm_version", "trace_digest"),
    *required(sa.Boolean, "is_proven"),  # False: refuted
    *required(sa.Float, "claimed_sec", "measured_sec"),
    *required(sa.Float, "least_sec"),  # shortest time that this proof supports
    *required(sa.Float, "spread_sec"),
    *required(sa.Integer, "calls"),
    *required(sa.Text, "message"),
    *required(UtcDateTime, "made_at"),
    sa.UniqueConstraint("workload_id", "target_key", "device_model", "tvm_version", "trace_digest"),
)

device_models = sa.Table(
    "device_models",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *required(JsonText, "facts"),
    *required(UtcDateTime, "seen_at"),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    *required(sa.LargeBinary, "content"),
    *required(sa.Text, "feature_version"),
    *required(sa.Integer, "record_count"),
    *required(JsonText, "workloads"),
    *required(sa.Integer, "last_record_id"),
    *required(JsonText, "metrics"),
    *required(UtcDateTime, "made_at"),
    sa.Column("published_at", UtcDateTime),  # NULL while another snapshot ranks better
)

trainer = sa.Table(
    "trainer",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # one row, 1
    *required(sa.Text, "holder"),
    *required(UtcDateTime, "expires_at"),
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
