"""Invariants of a job's state after every event. Only tests check them, so the optimizer does not pay for it."""

from __future__ import annotations

import math

from fleet.optimizer.core.candidates import CandidateStage
from fleet.optimizer.core.state import JobCore


def broken_invariants(core: JobCore) -> list[str]:
    """Return a sentence for each violated invariant."""
    return [*_broken_candidates(core), *_broken_workloads(core)]


def validate(core: JobCore) -> None:
    """Check all invariants.

    Raises:
        AssertionError: one does not hold.
    """
    broken = broken_invariants(core)
    if broken:
        raise AssertionError("; ".join(broken))


def _broken_candidates(core: JobCore) -> list[str]:
    found = []
    for (workload, digest), candidate in core.candidates.items():
        is_stored = candidate.stage in (CandidateStage.RECORDED, CandidateStage.CHECKED)
        if is_stored and (candidate.record_id is None or not math.isfinite(candidate.median_sec)):
            found.append(f"{digest} is {candidate.stage.value} and has no record or no time")
        if candidate.stage is CandidateStage.BUILT and candidate.build is None:
            found.append(f"{digest} counts as built and has no build")
        is_counted = (workload, digest) in core.results.counted
        if not candidate.is_static and is_counted == (digest in core.workload(workload).under_way):
            found.append(f"{digest} is {'counted and' if is_counted else 'neither counted nor'} under way")
    return found


def _broken_workloads(core: JobCore) -> list[str]:
    found = []
    progress = core.progress
    planned = progress.trials_done + sum(len(item.under_way) + len(item.asked) for item in progress.workloads)
    if planned > progress.trials_total:
        found.append(f"{planned} trials are planned of {progress.trials_total}")
    for item in progress.workloads:
        shash = item.workload.shash
        if item.trials != sum(workload == shash for workload, _ in core.results.counted):
            found.append(f"{item.workload.name} counts {item.trials} trials, which is not the number of its candidates")
        traces = [record.trace_json for record in item.records]
        if len(set(traces)) < len(traces):
            found.append(f"{item.workload.name} has a candidate twice")
        own = [candidate for candidate in core.candidates.values() if candidate.workload == shash]
        if any(c.trace_json in item.right and c.stage is not CandidateStage.CHECKED for c in own):
            found.append(f"a candidate of {item.workload.name} counts as right, and was not checked")
        if any(c.trace_json in item.right and item.right[c.trace_json] != c.median_sec for c in own):
            found.append(f"a candidate of {item.workload.name} has two times")
        if item.uses_schedule and item.best_sec >= item.untuned_sec:
            found.append(f"{item.workload.name} uses a schedule that is slower than none")
    return found
