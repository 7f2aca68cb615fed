"""Schedules for the new program of a workload: the former best ones are adapted, else its static one is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.domain.keys import trace_digest
from fleet.domain.making import Making
from fleet.domain.workload import Workload
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.refreshing.plan import Group, Rebuilt, new_record
from fleet.optimizer.refreshing.workbench import Workbench, rebuild


async def renewed(bench: Workbench, before: Group, program: Workload) -> Group:
    """Return the schedules to measure on the new program, the adapted former best first."""
    static = await bench.static_trace(program)
    seeds = [replace(one.record.observation(), mod_json=before.workload.mod_json) for one in before.rebuilt]

    async def built(candidates: Sequence[Candidate]) -> list[Rebuilt]:
        records = [new_record(before, program.shash, one, static) for one in candidates]
        found = [await rebuild(bench, program, record, Making()) for record in records]
        return [one for one in found if one.build is not None]

    found = await built(await bench.adapt(program, seeds))
    if not found and static is not None:
        found = await built([Candidate(trace_json=static, digest=trace_digest(static))])
    none = Rebuilt(record=before.former.record, making=Making(), build=None, problem="no schedule fits its new program")
    return replace(before, workload=program, rebuilt=tuple(found) or (none,), before=before)
