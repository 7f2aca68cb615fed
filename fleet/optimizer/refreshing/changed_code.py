"""Records with other code than they would have today."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.base.scratch import scratch_dir
from fleet.building import MODULES
from fleet.building.turns import Turns
from fleet.domain.making import Making
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record
from fleet.optimizer.refreshing.plan import Rebuilt
from fleet.optimizer.refreshing.workbench import PoolWorkbench, Workbench, rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCode:
    """Code of the best schedules, compared with builds of today."""

    changed: frozenset[int]
    """Ids of the records with other code; with those that do not build any more."""

    unknown: frozenset[int]
    """Ids of the records with other code after linking, and unknown code before."""


async def judge_code(
    library: Library,
    scopes: Sequence[RecordScope],
    *,
    workers: int | None = None,
    narrate: Callable[[str], object] = lambda _: None,
) -> JudgedCode:
    """Build the best schedules of some scopes again, and compare their code."""
    found: list[Rebuilt] = []
    for place, scope in enumerate(scopes, 1):
        narrate(f"building the best schedules of {scope.device_model}, scope {place} of {len(scopes)}")
        found += await _rebuild_scope(library, scope, workers)
    differing = [one for one in found if not one.is_same]
    unknown = frozenset(one.record.id for one in differing if one.build is not None and not one.making.object_digest)
    return JudgedCode(changed=frozenset(one.record.id for one in differing) - unknown, unknown=unknown)


async def _rebuild_scope(library: Library, scope: RecordScope, workers: int | None) -> list[Rebuilt]:
    target = parse_target(scope.target_json)
    best = await asyncio.to_thread(library.best_schedules, scope)
    workloads = {one.shash: one for one in library.workloads({record.workload for record in best})}
    makings = library.makings([record.id for record in best])
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
            return await asyncio.gather(*map(build, best))
