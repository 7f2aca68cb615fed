"""Follows the device time that a job is charged, and ends its part in workloads that it searches no more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from fleet.building.turns import Turns
from fleet.domain.scope import RecordScope
from fleet.library import Library
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.library_polling import poll

_POLL_SEC = 2.0


@dataclass(kw_only=True)
class ChargesOfJob:
    """The charges of one job in one scope."""

    library: Library
    job_name: str
    scope: RecordScope
    _total_sec: float = 0.0
    _newest: int = 0
    """Newest record that is part of the total."""

    _left: set[str] = field(default_factory=set)

    async def follow(self, core: JobCore, turns: Turns) -> None:
        """Update the job's charge until cancelled.

        Args:
            turns: those of the job.
        """

        async def read() -> None:
            core.charge(await asyncio.to_thread(self._read, core.searched_no_more()))

        await poll(read, turns, every_sec=_POLL_SEC, subject=f"charges of {self.job_name}")

    def settle(self, workloads: Collection[str]) -> float:
        """Leave all workloads of the job, and return its charge [s].

        Raises:
            LibraryError: the library cannot be used.
        """
        self.library.claims.leave(self.job_name, workloads, self.scope)
        return self.library.claims.charges(self.job_name, self.scope).device_sec

    def _read(self, searched_no_more: frozenset[str]) -> float:
        if new := searched_no_more - self._left:
            self.library.claims.leave(self.job_name, new, self.scope)
            self._left |= new
        found = self.library.claims.charges(self.job_name, self.scope, after=self._newest)
        self._total_sec += found.device_sec
        self._newest = found.newest
        return self._total_sec
