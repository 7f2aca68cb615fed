"""Chooses the schedule of each workload of a model from a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.domain.keys import NO_TRACE, trace_digest
from fleet.domain.measuring import NO_VERDICT
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.workload import Workload
from fleet.errors import ErrorKind
from fleet.library import Library, Record, RecordKind


def schedules(
    library: Library,
    workloads: Sequence[Workload],
    scope: RecordScope,
    compared: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Return the trace of each workload of a model that has a checked schedule; NO_TRACE if it is faster without one.

    Args:
        compared: the same, by structural hash, for workloads that a job has compared already; None for no schedule.
    """
    decided = dict(compared or {})
    for workload in workloads:
        if workload.shash in decided:
            continue
        best = fastest(library, workload.shash, scope)
        baseline = library.baseline(workload.shash, scope)
        is_faster = bool(best) and (baseline is None or best[0].median_sec < baseline.median_sec)
        decided[workload.shash] = (best[0].trace_json if is_faster else NO_TRACE) if best else None
    found = {shash: trace for shash, trace in decided.items() if trace is not None}
    placed = {shash: in_model(library, shash, trace, scope) for shash, trace in found.items() if trace != NO_TRACE}
    return found | {shash: record.trace_json for shash, record in placed.items() if record is not None}


def fastest(library: Library, workload: str, within: ScopeFilter) -> list[Record]:
    """Return the fastest schedule with a proven time, else the fastest checked one; empty if none was checked."""
    proven = library.best(workload, within, checked_only=True, proven_only=True)
    return proven or library.best(workload, within, checked_only=True)


def without_static(library: Library, workloads: Sequence[Workload], scope: RecordScope) -> dict[str, str]:
    """Return NO_TRACE for each workload whose static schedule failed, for models without a better schedule.

    It failed if the newest one with a verdict on this device model did, or if one of this target crashed on another. A
    device that was lost meanwhile is no verdict.
    """
    alike = ScopeFilter(target_json=scope.target_json, tvm_version=scope.tvm_version)
    found = {}
    for workload in workloads:
        static = library.records(workload.shash, alike, kinds=[RecordKind.STATIC])
        here = [record for record in static if record.scope.device_model == scope.device_model]
        ran = [record.error for record in here if record.error not in NO_VERDICT]
        has_failed = ran[-1] is not None if ran else any(record.error is ErrorKind.CRASHED for record in static)
        if has_failed:
            found[workload.shash] = NO_TRACE
    return found


def are_static(library: Library, schedules: Mapping[str, str], without: Mapping[str, str], scope: RecordScope) -> bool:
    """Tell whether all of a model's schedules are static.

    Args:
        without: NO_TRACE for each workload without a static schedule.
    """
    return all(
        without.get(shash) == NO_TRACE
        if trace == NO_TRACE
        else any(record.trace_json == trace for record in library.records(shash, scope, kinds=[RecordKind.STATIC]))
        for shash, trace in schedules.items()
    )


def in_model(library: Library, workload: str, trace_json: str, within: ScopeFilter) -> Record | None:
    """Return the record of the schedule that won in the model, which a whole model uses instead of the fastest alone.

    Args:
        trace_json: of the schedule that is fastest alone. None is returned unless it ran against the winner there.
    """
    found = library.records(workload, within, kinds=[RecordKind.IN_PLACE], with_errors=False, limit=1)
    compared = found[0].provenance.get("compared") if found else None
    return found[0] if isinstance(compared, list) and trace_digest(trace_json) in compared else None
