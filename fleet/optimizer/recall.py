"""Reads records of a job's workloads from the library."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from fleet.base.config import did_you_mean
from fleet.building.pool import Pool
from fleet.cost_model.feature_codec import FEATURE_VERSION, unpack_rows
from fleet.domain.keys import trace_digest
from fleet.domain.measuring import disturbances_in
from fleet.domain.observation import Observation
from fleet.domain.operators import workload_kind
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.jobs.patience import patiently
from fleet.library import Library
from fleet.optimizer.backfill import recalled
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.prioritizer.values import StaticQuality
from fleet.optimizer.seeds import exact_seeds, own_seeds, seeds_for
from fleet.optimizer.static_quality import static_qualities
from fleet.packs.lookup import NO_PACKS, Packs

_RECALLED_FEATURES = 256
"""Number of a workload's newest candidates without stored features for which a job computes them before it starts."""

_REPLAYED = 1_000
"""Maximum number of a workload's fastest schedules that are tried elsewhere."""

_ALL = 2**31 - 1


def recall(
    library: Library,
    workloads: Sequence[Workload],
    scope: RecordScope,
    packs: Packs = NO_PACKS,
    *,
    since: datetime | None = None,
) -> list[WorkloadProgress]:
    """Return each workload with its earlier trials on this device model, target and TVM version.

    Args:
        packs: have schedules to try first on workloads without trials.
        since: of older records only the schedules are tried. Aware.
    """
    library.add_workloads(workloads)
    within = ScopeFilter(measured_since=since).of(scope)
    counts = library.trial_counts([item.shash for item in workloads], within)
    found = []
    for workload in workloads:
        progress = WorkloadProgress(workload=workload, trials_before=counts.get(workload.shash, 0))
        baseline = library.baseline(workload.shash, within)
        if baseline is not None:
            progress.untuned_sec = baseline.median_sec
            progress.is_untuned_disturbed = bool(disturbances_in(baseline.provenance))
        right = library.best(workload.shash, within, k=_ALL, checked_only=True)
        progress.right = {record.trace_json: record.median_sec for record in right}
        progress.proven = {record.trace_json: record.median_sec for record in right if record.is_proven}
        progress.records = _records_of(library, workload, within)
        progress.poison = library.claims.poison(workload.shash)
        found.append(progress)
    untried = [progress for progress in found if not progress.trials_before]
    qualities = static_qualities(library, scope.target_json) if untried else {}
    for progress in untried:
        workload = progress.workload
        if kind := workload_kind(workload.name, workload.args, workload.mod_json):
            progress.quality = qualities.get(kind) or StaticQuality(kind=kind)
    new = [progress for progress in found if not progress.records]
    others = library.outlines() if new else []
    for progress in new:
        older = () if since is None else own_seeds(library, progress.workload, scope)
        progress.seeds = (*older, *seeds_for(library, progress.workload, scope, others))
    _add_packs(packs, untried, scope)
    return found


def _add_packs(packs: Packs, untried: Sequence[WorkloadProgress], scope: RecordScope) -> None:
    """Put schedules of packs for this very scope before other seeds, and those for other ones after them."""
    exact = exact_seeds(packs, [item.workload for item in untried], scope)
    for item in untried:
        item.seeds = (*exact.get(item.workload.shash, ()), *item.seeds)
    for library in packs.libraries:
        others = library.outlines()
        for item in untried:
            item.seeds += seeds_for(library, item.workload, scope, others)


def _records_of(library: Library, workload: Workload, within: ScopeFilter) -> list[Observation]:
    """Return one record for each candidate of a workload, with its program where that is stored."""
    stored = {record.trace_json: record for record in library.records(workload.shash, within)}
    if not stored:
        return []
    timed = {record.trace_json: record for record in library.candidates(workload.shash, within)}
    programs = library.memory.programs(workload.shash, within, feature_version=FEATURE_VERSION)
    return [
        replace(
            timed.get(trace, record).observation(programs.get(record.trace_digest)),
            run_sec=timed[trace].median_sec if trace in timed else math.inf,
            stores=b"",
        )
        for trace, record in stored.items()
    ]


def traces_of(library: Library, workload: Workload) -> list[str]:
    """Return the traces of a workload's candidates on any device, fastest first, without any that was found wrong."""
    found = library.best(workload.shash, k=_REPLAYED)
    return list(dict.fromkeys(record.trace_json for record in found))


def choose_workloads(workloads: Sequence[Workload], patterns: Sequence[str], title: str) -> list[Workload]:
    """Return the workloads that match shell patterns, in order; all if there is no pattern.

    Raises:
        InvalidRequest: no workload is left.
    """
    if not workloads:
        raise InvalidRequest(f"{title} has no operator that can be tuned")
    chosen = [w for w in workloads if not patterns or any(fnmatch.filter(w.names, p) for p in patterns)]
    if not chosen:
        known = [workload.name for workload in workloads]
        raise InvalidRequest(f"no workload of {title} matches {', '.join(patterns)}{did_you_mean(patterns[0], known)}")
    return chosen


async def with_features(pool: Pool, library: Library, item: WorkloadProgress, scope: RecordScope) -> list[Observation]:
    """Return earlier candidates of a workload with their features, as far as these are stored.

    In libraries that have no features, those of the newest candidates are computed now.
    """
    shash, memory = item.workload.shash, library.memory
    find = partial(memory.without_features, FEATURE_VERSION, workload=shash, within=scope, limit=_RECALLED_FEATURES)
    missing = await patiently(find)
    if missing:
        by_record = await recalled(pool, item.workload.mod_json, scope.target_json, missing)
        await patiently(partial(memory.add_programs, by_record))
    programs = await patiently(partial(memory.programs, shash, scope, feature_version=FEATURE_VERSION))
    known = [(record, programs.get(trace_digest(record.trace_json))) for record in item.records]
    return [replace(record, features=unpack_rows(program.stores)) for record, program in known if program is not None]
