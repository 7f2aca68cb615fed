"""Records with other code or another program than they would have today."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.base.scratch import scratch_dir
from fleet.building import MODULES
from fleet.building.turns import Turns
from fleet.domain.freshness import StaleReason
from fleet.domain.making import Making
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record
from fleet.optimizer.refreshing.plan import Rebuilt
from fleet.optimizer.refreshing.programs import Lowered, lower_again
from fleet.optimizer.refreshing.workbench import PoolWorkbench, Workbench, rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCode:
    """Code and programs of the best schedules, compared with those of today."""

    changed: frozenset[int] = frozenset()
    """Ids of the records with other code; with those that do not build any more."""

    unknown: frozenset[int] = frozenset()
    """Ids of the records with other code after linking, and unknown code before."""

    other_programs: frozenset[int] = frozenset()
    """Ids of the records with operators that are lowered to another program today, which has no records."""

    unknown_programs: frozenset[int] = frozenset()
    """Ids of the records without a fragment that can be lowered."""

    refused: int = 0
    """Number of fragments that cannot be read or lowered."""

    refusal: str = ""
    """Sentence of the first of them."""

    @property
    def by_reason(self) -> Mapping[StaleReason, frozenset[int]]:
        """Ids of the records to measure again by reason."""
        return {StaleReason.CODE: self.changed, StaleReason.PROGRAM: self.other_programs}

    def within(self, ids: AbstractSet[int]) -> JudgedCode:
        """Return the part about some records."""
        return replace(
            self,
            changed=self.changed & ids,
            unknown=self.unknown & ids,
            other_programs=self.other_programs & ids,
            unknown_programs=self.unknown_programs & ids,
        )


async def judge_code(
    library: Library,
    scopes: Sequence[RecordScope],
    *,
    workers: int | None = None,
    narrate: Callable[[str], object] = lambda _: None,
) -> JudgedCode:
    """Build the best schedules of some scopes again, and compare their code and programs."""
    found: list[Rebuilt] = []
    lowered: dict[str, Lowered] = {}
    for place, scope in enumerate(scopes, 1):
        narrate(f"building the best schedules of {scope.device_model}, scope {place} of {len(scopes)}")
        known = lowered.get(scope.target_json, Lowered())
        rebuilt, lowered[scope.target_json] = await _rebuild_scope(library, scope, workers, known, narrate)
        found += rebuilt
    differing = [one for one in found if not one.is_same]
    unknown = frozenset(one.record.id for one in differing if one.build is not None and not one.making.object_digest)
    refusals = [one for each in lowered.values() for one in each.refusals.values()]
    return JudgedCode(
        changed=frozenset(one.record.id for one in differing) - unknown,
        unknown=unknown,
        other_programs=_of_other_programs([one.record for one in found], lowered),
        unknown_programs=frozenset(
            one.record.id for one in found if one.record.workload not in lowered[one.record.scope.target_json].programs
        ),
        refused=len(refusals),
        refusal=next((one.refusal for one in lowered.values() if one.refusal), ""),
    )


def _of_other_programs(records: Sequence[Record], lowered: Mapping[str, Lowered]) -> frozenset[int]:
    """Return the ids of records of other programs than today's, unless today's has records on the device model."""
    recorded = {_place(record, record.workload) for record in records}
    new = ((record, lowered[record.scope.target_json].changed.get(record.workload)) for record in records)
    return frozenset(record.id for record, one in new if one is not None and _place(record, one.shash) not in recorded)


def _place(record: Record, shash: str) -> tuple[str, str, str]:
    return record.scope.target_json, record.scope.device_model, shash


async def _rebuild_scope(
    library: Library,
    scope: RecordScope,
    workers: int | None,
    known: Lowered,
    narrate: Callable[[str], object],
) -> tuple[list[Rebuilt], Lowered]:
    """Return the rebuilt schedules, and the known programs with those of this scope."""
    target = parse_target(scope.target_json)
    best = await asyncio.to_thread(library.best_schedules, scope)
    shashes = {record.workload for record in best}
    workloads = {one.shash: one for one in library.workloads(shashes)}
    makings = library.makings([record.id for record in best])
    fragments = library.fragments(scope.target_json, shashes - known.programs.keys() - known.refusals.keys())
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_dir("artifacts"))
        pool = BuildPool(workers, target=target, modules=MODULES)
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        bench: Workbench = PoolWorkbench.of(pool, target, folder)

        def build(record: Record) -> asyncio.Task[Rebuilt]:
            making = makings.get(record.id, Making())
            return asyncio.create_task(rebuild(bench, workloads[record.workload], record, making))

        async with Turns.of_this_machine().building():
            lowered = await lower_again(pool, fragments, target, narrate=narrate)
            return await asyncio.gather(*map(build, best)), known.joined(lowered)
