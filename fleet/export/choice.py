"""Chooses the records of an exported model: checked ones, all from one kind of hardware.

A workload without a record in the library gets that of a pack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.workload import Workload
from fleet.library import Library, Record, RecordKind
from fleet.library.proof_words import unproven_line
from fleet.model_schedules import fastest, in_model, schedules, without_static
from fleet.packs.lookup import NO_PACKS, PackRecord, Packs, sources_line
from fleet.runtime.manifest import UsedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Schedules for a model."""

    traces: Mapping[str, str] = field(default_factory=dict)
    """Trace JSON by workload hash, as `fleet.workloads.applying.apply_schedules` takes them."""

    records: tuple[UsedRecord, ...] = ()
    """Their sources, in the model's order of workloads."""

    device_model: str = ""
    """The hardware that they were measured on."""

    trials: int = 0
    """Number of trials of the model's workloads in this scope."""

    older: int = 0
    """Number of records that were too old for the filter."""

    unproven: str = ""
    """Warning with the number of unproven times; empty if all are proven."""

    packs: str = ""
    """Names the packs behind schedules; empty without any."""


def choose(library: Library, workloads: Sequence[Workload], within: ScopeFilter, packs: Packs = NO_PACKS) -> Choice:
    """Return the best checked schedules of the scope that has some for most of the model's workloads.

    Times from two scopes never compete, so all come from one: among several that serve as many workloads, the oldest.

    Args:
        packs: serve workloads without a time in that scope; without one in any, the first scope of the packs counts.
    """
    shashes = [workload.shash for workload in workloads]
    found = [(scope, schedules(library, workloads, within.of(scope))) for scope in library.scopes(shashes, within)]
    found = found or [(scope, {}) for scope in packs.scopes(shashes, within)[:1]]
    older = library.count_older(shashes, within)
    if not found:
        return Choice(older=older)
    scope, traces = max(found, key=lambda one: len(one[1]))
    return replace(_in_scope(library, packs, workloads, scope, within.of(scope), traces), older=older)


def _in_scope(
    library: Library,
    packs: Packs,
    workloads: Sequence[Workload],
    scope: RecordScope,
    within: ScopeFilter,
    traces: Mapping[str, str],
) -> Choice:
    timed = library.best_of([workload.shash for workload in workloads], within)
    others = [workload for workload in workloads if workload.shash not in timed]
    shared = packs.best([workload.shash for workload in others], within)
    of_packs = {shash: one.record.trace_json for shash, one in shared.items()}
    traces = {**without_static(library, others, scope), **of_packs, **traces}
    # the others have no schedule, or the unscheduled program is faster
    own = [w.shash for w in workloads if traces.get(w.shash) and w.shash not in shared]
    found = _of_times_alone(library, own, within) | {shash: one.record for shash, one in shared.items()}
    records = tuple(
        UsedRecord(
            workload=workload.name,
            operator=workload.operator,
            shash=workload.shash,
            uid=record.uid,
            median_sec=record.median_sec,
            is_static=record.kind is RecordKind.STATIC,
            pack=_digest_of(shared.get(workload.shash)),
        )
        for workload in workloads
        if workload.shash in found
        for record in [found[workload.shash]]
    )
    unproven = sum(found[shash].needs_proof for shash in found.keys() - shared.keys())
    return Choice(
        traces=traces,
        records=records,
        device_model=scope.device_model if traces else "",
        trials=sum(library.trial_counts([workload.shash for workload in workloads], within).values()),
        unproven=unproven_line(unproven, len(found)),
        packs=sources_line(shared),
    )


def _digest_of(used: PackRecord | None) -> str:
    return "" if used is None else used.pack.digest


def _of_times_alone(library: Library, workloads: Sequence[str], within: ScopeFilter) -> dict[str, Record]:
    """Return the records with the times alone of the schedules that a model gets. These may be other records than the
    best: times within models decided, and they do not compare with others.
    """
    best = fastest(library, workloads, within)
    placed = in_model(library, {shash: record.trace_json for shash, record in best.items()}, within)
    return best | {shash: _time_alone(library, record, within) for shash, record in placed.items()}


def _time_alone(library: Library, placed: Record, within: ScopeFilter) -> Record:
    candidates = library.candidates(placed.workload, within)
    return next((one for one in candidates if one.trace_digest == placed.trace_digest), placed)
