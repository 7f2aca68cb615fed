"""Builds of a refresh in the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cross.targets.target import Target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.pool import Pool, run_within
from fleet.domain.making import Making
from fleet.domain.observation import Observation
from fleet.domain.workload import StoredWorkload
from fleet.errors import BuildError, InvalidRequest
from fleet.library import Record
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.refreshing.plan import Rebuilt
from fleet.optimizer.refreshing.programs import Lowered, lower_again
from fleet.optimizer.tasks.adapt import adapted_schedules
from fleet.optimizer.tasks.propose import ProposeTask, propose

_TIMEOUT_SEC = 120.0
_AT_ONCE = 64
"""Builds in the pool's queue: a refresh may have thousands."""


class Workbench(Protocol):
    """Builds schedules of stored workloads."""

    async def build(self, workload: StoredWorkload, trace_json: str) -> BuiltCandidate:
        """Build a schedule.

        Raises:
            BuildError, InvalidRequest: it does not build, or does not fit the workload.
        """
        ...

    async def static_trace(self, workload: StoredWorkload) -> str | None:
        """Return today's static schedule, or None for a workload without one."""
        ...

    async def lower(self, contents: Mapping[str, bytes]) -> Lowered:
        """Lower fragments in their stored form, by workload hash."""
        ...

    async def adapt(self, workload: StoredWorkload, seeds: Sequence[Observation]) -> list[Candidate]:
        """Return the schedules of other programs that fit a workload, in order."""
        ...


async def rebuild(bench: Workbench, workload: StoredWorkload, record: Record, making: Making) -> Rebuilt:
    """Build the schedule of a record."""
    try:
        build = await bench.build(workload, record.trace_json)
    except (BuildError, InvalidRequest) as error:
        return Rebuilt(record=record, making=making, build=None, problem=str(error))
    return Rebuilt(record=record, making=making, build=build)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkbench:
    """Builds in the processes of a pool."""

    pool: Pool
    target: Target
    folder: Path
    turns: asyncio.Semaphore

    @classmethod
    def of(cls, pool: Pool, target: Target, folder: Path) -> PoolWorkbench:
        """Return a workbench that writes artifacts to a folder."""
        return cls(pool=pool, target=target, folder=folder, turns=asyncio.Semaphore(_AT_ONCE))

    async def build(self, workload: StoredWorkload, trace_json: str) -> BuiltCandidate:
        task = BuildTask(
            mod_json=workload.mod_json,
            target=self.target,
            trace_json=trace_json,
            out_dir=str(self.folder),
            wants_features=False,
        )
        async with self.turns:
            return await run_within(self.pool, _TIMEOUT_SEC, build_candidate, task)

    async def static_trace(self, workload: StoredWorkload) -> str | None:
        task = ProposeTask(mod_json=workload.mod_json, target=self.target, is_static=True)
        try:
            found = await run_within(self.pool, _TIMEOUT_SEC, propose, task)
        except (BuildError, InvalidRequest):
            return None
        return found[0].trace_json if found else None

    async def lower(self, contents: Mapping[str, bytes]) -> Lowered:
        return await lower_again(self.pool, contents, self.target, narrate=lambda line: None)

    async def adapt(self, workload: StoredWorkload, seeds: Sequence[Observation]) -> list[Candidate]:
        try:
            async with self.turns:
                return await run_within(
                    self.pool, _TIMEOUT_SEC, adapted_schedules, workload.mod_json, self.target, list(seeds)
                )
        except (BuildError, InvalidRequest):
            return []
