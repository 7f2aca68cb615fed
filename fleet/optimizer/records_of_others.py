"""Follows the records that other jobs store while this one runs, of the same workloads in the same scope.

Jobs of any process that share a library and a workload thus share what they learn: its candidates train the searches of
both, and the best schedule of one is that of the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.building.turns import Turns
from fleet.cost_model.feature_codec import FEATURE_VERSION, unpacked
from fleet.domain.observation import Observation
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest
from fleet.library import Library
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.library_polling import poll

logger = logging.getLogger(__name__)

_POLL_SEC = 1.0
_REFRESH_SEC = 5.0
"""Interval of looks at the fastest schedules of a workload: a candidate is checked after its record is stored."""

_CHECKED_WITHIN_SEC = 60.0
"""Time after a workload's newest record in which its candidates are checked."""

_FASTEST = 4
"""Right candidates that are read of each workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """News of one workload."""

    observations: Sequence[Observation]
    right: Mapping[str, float]
    refuted: frozenset[str]


@dataclass(kw_only=True)
class RecordsOfOthers:
    """The records of other jobs after a certain one."""

    library: Library
    job_name: str
    scope: RecordScope
    workloads: Sequence[str]
    first: int
    """Newest record when the job read the library."""

    _newest: int = field(init=False)
    _refresh_at: dict[str, float] = field(default_factory=dict)
    """Next look at the fastest schedules of each workload, on the monotonic clock [s]."""

    _until: dict[str, float] = field(default_factory=dict)
    """Last look at them."""

    def __post_init__(self) -> None:
        self._newest = self.first

    async def follow(self, core: JobCore, turns: Turns) -> None:
        """Tell the core of new records until cancelled.

        Args:
            turns: those of the job.
        """

        async def read() -> None:
            for workload, found in (await asyncio.to_thread(self.read)).items():
                core.learn_from_others(workload, found.observations, right=found.right, refuted=found.refuted)

        await poll(read, turns, every_sec=_POLL_SEC, subject=f"records of other jobs for {self.job_name}")

    def read(self) -> Mapping[str, _Found]:
        """Return updates by workload: new trials, and the fastest right candidates of recently measured ones.

        Raises:
            LibraryError: the library cannot be read.
        """
        rows = self.library.memory.observations_after(
            self._newest,
            workloads=self.workloads,
            within=self.scope,
            except_job=self.job_name,
            feature_version=FEATURE_VERSION,
        )
        now = time.monotonic()
        observations: dict[str, list[Observation]] = {}
        for found in rows:
            observations.setdefault(found.workload, []).append(_readable(found))
            self._newest = found.record_id
        for workload in observations:
            self._refresh_at[workload], self._until[workload] = now, now + _CHECKED_WITHIN_SEC
        due = [workload for workload, at in self._refresh_at.items() if at <= now]
        refuted = self.library.memory.refuted_after(self.first, workloads=due, within=self.scope) if due else {}
        news = {
            workload: _Found(
                observations=observations.get(workload, ()),
                right=self._right(workload),
                refuted=refuted.get(workload, frozenset()),
            )
            for workload in due
        }
        for workload in due:
            self._refresh_at[workload] = now + _REFRESH_SEC
            if self._until[workload] < now:
                del self._refresh_at[workload], self._until[workload]
        return news

    def _right(self, workload: str) -> Mapping[str, float]:
        best = self.library.best(workload, self.scope, k=_FASTEST, checked_only=True)
        return {record.trace_json: record.median_sec for record in best}


def _readable(observation: Observation) -> Observation:
    """Return an observation with its features; without any if they are damaged, since its time counts as well."""
    try:
        return unpacked(observation)
    except InvalidRequest as error:
        logger.warning("features of another job's record not read", extra={"error": str(error)})
        return replace(observation, stores=b"")
