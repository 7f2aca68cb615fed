"""Results into the library, before anything else happens to them."""

from __future__ import annotations

import asyncio
import time

from fleet.library import Library, NewRecord, Record, RecordKind
from fleet.measuring import Measurement
from fleet.optimizer.candidates import Candidate, Conditions
from fleet.optimizer.progress import JobProgress, WorkloadProgress


class Recorder:
    """Writes the records of one job."""

    def __init__(self, library: Library, conditions: Conditions, progress: JobProgress) -> None:
        self._library = library
        self._conditions = conditions
        self._progress = progress

    async def store(
        self,
        item: WorkloadProgress,
        measurement: Measurement,
        *,
        candidate: Candidate | None = None,
        checked: bool | None = None,
    ) -> Record:
        """Commit one result; without a candidate it is the unscheduled program's.

        Raises:
            LibraryError, DiskFull: it could not be stored; the job must not go on.
        """
        conditions = self._conditions
        record = NewRecord(
            workload=item.workload.shash,
            target_json=conditions.target_json,
            device_model=conditions.device_model,
            tvm_version=conditions.tvm_version,
            trace_json=candidate.trace_json if candidate else "",
            run_secs=measurement.run_secs,
            error=measurement.error,
            error_message=measurement.error_message,
            job_name=conditions.job_name,
            device_name=self._progress.device_name,
            device_fingerprint=conditions.device_fingerprint,
            artifact_digest=candidate.artifact.digest if candidate and candidate.built else "",
            kind=RecordKind.CANDIDATE if candidate else RecordKind.BASELINE,
            provenance=measurement.provenance,
            checked=checked,
        )
        stored = await asyncio.to_thread(self._library.add_record, record)
        self._progress.last_record_sec = time.monotonic() - conditions.started_at
        return stored

    async def mark_checked(self, candidate: Candidate) -> None:
        """Say in the library that a candidate computes the right numbers."""
        if candidate.record is not None:
            await asyncio.to_thread(self._library.mark_checked, candidate.record.id)

    async def mark_wrong(self, candidate: Candidate, message: str) -> None:
        """Say in the library that a candidate must never be used."""
        if candidate.record is not None:
            await asyncio.to_thread(self._library.mark_wrong, candidate.record.id, message)
