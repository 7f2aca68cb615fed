"""Lowers the workloads of a file in the build pool, each alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cross.targets.target import Target
from fleet.building.pool import Pool, run_within
from fleet.domain.workload import Workload
from fleet.errors import BuildError, ImportFailed
from fleet.fragments.extracted import Extracted
from fleet.fragments.lowering import Reason, Refusal, tunable
from fleet.fragments.stored import to_stored
from fleet.fragments.workload_file import Entry
from fleet.fragments.workload_reading import entries_of
from fleet.models.model import Model
from fleet.workloads.extract import united

_READ_TIMEOUT_SEC = 60.0
_LOWER_TIMEOUT_SEC = 60.0


async def workloads_alone(pool: Pool, model: Model, target: Target, *, notice: Callable[[str], None]) -> Extracted:
    """Return the workloads of a file for a target with their fragments. Reports those that cannot be lowered.

    Raises:
        ConfigError: the file is not one of workloads.
        ImportFailed: none of them can be lowered.
        BuildError: reading it took longer than a minute.
    """
    entries = await run_within(pool, _READ_TIMEOUT_SEC, entries_of, model)
    made = await asyncio.gather(*(_lowered(pool, entry, target) for entry in entries))
    found = [one for one in made if isinstance(one, Workload)]
    refusals = [(entry, one) for entry, one in zip(entries, made, strict=True) if isinstance(one, Refusal)]
    if refusals:
        first, refusal = refusals[0]
        lacking = f"{len(refusals)} of {len(entries)} workloads cannot be lowered for this target"
        line = f"{lacking}; the first is {first.operator}: {refusal.reason}: {refusal.message}".rstrip(": ")
        if not found:
            raise ImportFailed(f"{model.title}: {line}")
        notice(line)
    pairs = zip(entries, made, strict=True)
    stored = {one.shash: to_stored(entry.fragment) for entry, one in pairs if isinstance(one, Workload)}
    faithful = {shash: content for shash, content in stored.items() if content is not None}
    return Extracted(workloads=tuple(united([found])), faithful=faithful)


async def _lowered(pool: Pool, entry: Entry, target: Target) -> Workload | Refusal:
    try:
        return await run_within(pool, _LOWER_TIMEOUT_SEC, tunable, entry, target)
    except BuildError as error:
        return Refusal(reason=Reason.CRASH, message=str(error))
