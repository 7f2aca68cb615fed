"""Keeps the built code of a job's best schedules in the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.artifacts.artifact import Artifact
from fleet.domain.scope import RecordScope
from fleet.domain.workload import WorkloadOutline
from fleet.library import Library, Record


def keep_best(library: Library, workloads: Sequence[WorkloadOutline], scope: RecordScope, folder: Path) -> None:
    """Store the artifacts of each workload's best schedules, as far as they lie in a folder.

    Raises:
        LibraryError, DiskFull: they cannot be stored.
    """
    best = library.best_schedules(scope, [one.shash for one in workloads])
    built = {record.id: _artifact(record, folder) for record in best}
    found = {record_id: artifact for record_id, artifact in built.items() if artifact is not None}
    library.keep_artifacts(found, [record.id for record in best])


def _artifact(record: Record, folder: Path) -> Artifact | None:
    """Return a record's artifact; None if another machine built it, or an earlier job."""
    path = folder / f"{record.artifact_digest.removeprefix('sha256:')}.so"
    return Artifact.of_file(path) if record.artifact_digest and path.exists() else None
