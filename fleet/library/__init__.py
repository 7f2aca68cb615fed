"""The fleet's long-term storage: jobs, workloads and records, in SQLite or PostgreSQL. See `fleet.library.store`."""

from __future__ import annotations

from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library.election import Term
from fleet.library.jobs import new_job_name
from fleet.library.memory import Memory
from fleet.library.pruning import Pruned
from fleet.library.queue import JobQueue, Standing
from fleet.library.store import Library
from fleet.library.values import (
    Charges,
    Job,
    JobState,
    JobSummary,
    ModelRun,
    NewSnapshot,
    OptimizerRecord,
    Record,
    RecordKind,
    RecordProgram,
    StoredSnapshot,
    StoredWorkload,
    WorkloadOutline,
    WorkloadSummary,
)

__all__ = [
    "Charges",
    "Job",
    "JobQueue",
    "JobState",
    "JobSummary",
    "Library",
    "Memory",
    "ModelRun",
    "NewSnapshot",
    "OptimizerRecord",
    "Pruned",
    "Record",
    "RecordKind",
    "RecordProgram",
    "RecordScope",
    "ScopeFilter",
    "Standing",
    "StoredSnapshot",
    "StoredWorkload",
    "Term",
    "WorkloadOutline",
    "WorkloadSummary",
    "canonical_target",
    "new_job_name",
    "trace_digest",
]
