"""Chooses the schedule of each workload of a model from a library."""

from __future__ import annotations

import math
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
    within: ScopeFilter,
    compared: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Return the trace of each workload of a model that has a checked schedule; NO_TRACE if it is faster without one.

    Args:
        within: one scope, or a part of it.
        compared: the same, by structural hash, for workloads that a job has compared already; None for no schedule.
    """
    decided = dict(compared or {})
    others = [workload.shash for workload in workloads if workload.shash not in decided]
    untuned = {shash: record.median_sec for shash, record in library.baselines(others, within).items()}
    decided |= {
        shash: best.trace_json if best.median_sec < untuned.get(shash, math.inf) else NO_TRACE
        for shash, best in fastest(library, others, within).items()
    }
    found = {shash: trace for shash, trace in decided.items() if trace is not None}
    scheduled = {shash: trace for shash, trace in found.items() if trace != NO_TRACE}
    return found | {shash: record.trace_json for shash, record in in_model(library, scheduled, within).items()}


def fastest(library: Library, workloads: Sequence[str], within: ScopeFilter) -> dict[str, Record]:
    """Return the fastest schedule with a proven time of each workload, else the fastest checked one."""
    checked = library.best_of(workloads, within, checked_only=True)
    proven = library.best_of(checked, within, checked_only=True, proven_only=True)
    return {shash: best[0] for shash, best in (checked | proven).items()}


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


def in_model(library: Library, fastest: Mapping[str, str], within: ScopeFilter) -> dict[str, Record]:
    """Return the records of the schedules that won in a model, which uses them instead of the fastest alone.

    Args:
        fastest: trace of the schedule that is fastest alone, by workload. A workload is left out unless that one ran
            against the winner there.
    """
    newest = library.newest_of(fastest, within, kind=RecordKind.IN_PLACE)
    return {shash: record for shash, record in newest.items() if trace_digest(fastest[shash]) in _compared_in(record)}


def _compared_in(record: Record) -> Sequence[object]:
    compared = record.provenance.get("compared")
    return compared if isinstance(compared, list) else []
