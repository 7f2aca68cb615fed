"""The long-term memory: jobs, workloads and records, in SQLite or PostgreSQL. See `fleet.library.store`."""

from __future__ import annotations

from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library.store import Library
from fleet.library.values import (
    Job,
    JobState,
    JobSummary,
    ModelRun,
    NewRecord,
    Record,
    RecordKind,
    RecordProgram,
    Sample,
    StoredWorkload,
    WorkloadSummary,
)

__all__ = [
    "Job",
    "JobState",
    "JobSummary",
    "Library",
    "ModelRun",
    "NewRecord",
    "Record",
    "RecordKind",
    "RecordProgram",
    "RecordScope",
    "Sample",
    "ScopeFilter",
    "StoredWorkload",
    "WorkloadSummary",
    "canonical_target",
    "trace_digest",
]
