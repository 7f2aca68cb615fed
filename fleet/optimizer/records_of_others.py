"""Follows the records that other jobs store while this one runs, of the same workloads in the same scope.

Jobs of any process that share a library and a workload thus share what they learn: its candidates train the searches of
both, and the best schedule of one is that of the other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.building.turns import Turns
from fleet.cost_model.feature_codec import FEATURE_VERSION, program_in, unpack_rows
from fleet.cost_model.observation import NO_FEATURES, Observation
from fleet.domain.measuring import disturbances_in
from fleet.domain.origin import Origin
from fleet.domain.scope import RecordScope
from fleet.errors import FleetError
from fleet.library import Library, Record, RecordProgram
from fleet.optimizer.core.state import JobCore

logger = logging.getLogger(__name__)

_POLL_SEC = 1.0
_CHECKED_WITHIN_SEC = 60.0
"""Time after a record in which its candidate is checked: so long the workload's best schedules are read again."""

_ALL = 2**31 - 1


@dataclass(kw_only=True)
class RecordsOfOthers:
    """The records of other jobs, from now on."""

    library: Library
    job_name: str
    scope: RecordScope
    workloads: Sequence[str]
    _newest: int = 0
    _checked_until: dict[str, float] = field(default_factory=dict)

    async def follow(self, core: JobCore, turns: Turns) -> None:
        """Tell the core of new records until cancelled. A library that is away costs a warning.

        Args:
            turns: those of the job: nothing is read while its own processor measures.
        """
        self._newest = await self._patient_start()
        is_away = False
        while True:
            await asyncio.sleep(_POLL_SEC)
            try:
                async with turns.building():
                    found, right = await asyncio.to_thread(self._read)
                is_away = False
            except FleetError as error:
                if not is_away:
                    logger.warning("records of other jobs not read", extra={"error": str(error)})
                is_away = True
                continue
            for workload, times in right.items():
                core.learn_from_others(workload, found.get(workload, ()), times)

    async def _patient_start(self) -> int:
        while True:
            try:
                return await asyncio.to_thread(self.library.newest_record)
            except FleetError:
                await asyncio.sleep(_POLL_SEC)

    def _read(self) -> tuple[Mapping[str, list[Observation]], Mapping[str, Mapping[str, float]]]:
        """Return new observations, and the times of all right candidates of recently measured workloads [s]."""
        rows = self.library.memory.records_after(
            self._newest,
            workloads=self.workloads,
            within=self.scope,
            except_job=self.job_name,
            feature_version=FEATURE_VERSION,
        )
        self._newest = max((record.id for record, _ in rows), default=self._newest)
        now = time.monotonic()
        found: dict[str, list[Observation]] = {}
        for record, program in rows:
            self._checked_until[record.workload] = now + _CHECKED_WITHIN_SEC
            found.setdefault(record.workload, []).append(_observation(record, program))
        self._checked_until = {shash: until for shash, until in self._checked_until.items() if until > now}
        return found, {shash: self._right(shash) for shash in self._checked_until}

    def _right(self, workload: str) -> Mapping[str, float]:
        best = self.library.best(workload, self.scope, k=_ALL, checked_only=True)
        return {record.trace_json: record.median_sec for record in best}


def _observation(record: Record, program: RecordProgram | None) -> Observation:
    return Observation(
        workload=record.workload,
        trace_json=record.trace_json,
        run_sec=math.inf if record.error is not None else record.median_sec,
        features=NO_FEATURES if program is None else unpack_rows(program.stores),
        origin=Origin.of_record(record.provenance, record.trace_json),
        program=program_in(program),
        is_disturbed=bool(disturbances_in(record.provenance)),
    )
