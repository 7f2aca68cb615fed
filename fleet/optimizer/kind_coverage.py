"""Counts the workloads of a library by kind and device model, and by the reason to expect a good schedule. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from fleet.library import WorkloadOutline
from fleet.library.build_times import BuildTime
from fleet.reports.library_figures import KindCoverage


def cover_kinds(
    outlines: Iterable[WorkloadOutline], times: Iterable[BuildTime], enough: Mapping[str, Collection[str]]
) -> list[KindCoverage]:
    """Return the coverage of each kind on each device model; sorted.

    Args:
        times: only checked schedules of programs cover these.
        enough: kinds with static schedules that are enough, by device model. Covers the device models in it.
    """
    kinds = {outline.shash: outline.kind for outline in outlines}
    totals = Counter(kinds.values())
    exact: defaultdict[str, set[str]] = defaultdict(set)
    for time in times:
        if time.is_checked:
            exact[time.device_model].add(time.workload)
    found = []
    for model, static in sorted(enough.items()):
        known = Counter(kinds[shash] for shash in exact[model] if shash in kinds)
        found += [_of(model, kind, known[kind], totals[kind], static) for kind in sorted(totals)]
    return found


def _of(model: str, kind: str, exact: int, total: int, static: Collection[str]) -> KindCoverage:
    rest, is_static, is_near = total - exact, kind in static, bool(kind) and exact > 0
    return KindCoverage(
        device_model=model,
        kind=kind,
        exact=exact,
        static=rest if is_static else 0,
        neighbour=rest if is_near and not is_static else 0,
        nothing=0 if is_static or is_near else rest,
    )
