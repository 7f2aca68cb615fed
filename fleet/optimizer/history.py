"""What the library already knows of a job's workloads, and which interrupted job a new one goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from fleet.library import Job, JobState, Library
from fleet.library import Workload as StoredWorkload
from fleet.optimizer.progress import WorkloadProgress
from fleet.optimizer.propose import SearchRecord
from fleet.workloads.extract import Workload


class Where(TypedDict):
    """What makes two records comparable."""

    target_json: str
    device_model: str
    tvm_version: str


def recall(library: Library, workloads: Sequence[Workload], where: Where) -> list[WorkloadProgress]:
    """Return each workload with its earlier trials on this device model, target and TVM version."""
    library.add_workloads(
        StoredWorkload(shash=item.shash, name=item.name, mod_json=item.mod_json, flop=item.flop, args=item.args)
        for item in workloads
    )
    counts = library.trial_counts([item.shash for item in workloads], **where)
    found = []
    for workload in workloads:
        progress = WorkloadProgress(workload=workload, trials_before=counts.get(workload.shash, 0))
        baseline = library.baseline(workload.shash, **where)
        if baseline is not None:
            progress.untuned_sec = baseline.median_sec
        best = library.best(workload.shash, checked_only=True, **where)
        if best:
            progress.best_sec, progress.best_trace = best[0].median_sec, best[0].trace_json
        for record in library.records(workload.shash, **where):
            progress.records.append(SearchRecord(trace_json=record.trace_json, run_sec=record.median_sec))
        found.append(progress)
    return found


def interrupted_job(library: Library, model_digest: str, conditions: Mapping[str, object]) -> Job | None:
    """Return the newest job with these conditions if it was interrupted."""
    for job in library.jobs(limit=1000):
        own = {key: value for key, value in job.conditions.items() if key != "resumes"}
        if job.model_digest != model_digest or own != dict(conditions):
            continue
        return job if job.state is JobState.INTERRUPTED else None
    return None
