"""The long-term memory: jobs, workloads and records, in SQLite or PostgreSQL. See `fleet.library.store`."""

from __future__ import annotations

from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library.queue import JobQueue, Standing
from fleet.library.store import Library
from fleet.library.values import (
    Job,
    JobState,
    JobSummary,
    ModelRun,
    NewRecord,
    Optimizer,
    Record,
    RecordKind,
    RecordProgram,
    Sample,
    StoredWorkload,
    WorkloadSummary,
)

__all__ = [
    "Job",
    "JobQueue",
    "JobState",
    "JobSummary",
    "Library",
    "ModelRun",
    "NewRecord",
    "Optimizer",
    "Record",
    "RecordKind",
    "RecordProgram",
    "RecordScope",
    "Sample",
    "ScopeFilter",
    "Standing",
    "StoredWorkload",
    "WorkloadSummary",
    "canonical_target",
    "trace_digest",
]
