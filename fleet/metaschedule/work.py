"""Trials that wait for a device. Lives on one event loop; all its methods are called there."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from fleet.artifacts import Artifact
from fleet.measuring import ErrorKind, Measurement, Trial


@dataclass(slots=True, eq=False)
class Work:
    """One trial, and who waits for it."""

    artifact: Artifact
    trial: Trial
    result: Future[Measurement] = field(default_factory=Future)
    attempts: int = 0
    """Devices that began with it and gave no verdict."""

    def fail(self, kind: ErrorKind, message: str) -> None:
        """End it with an error of the candidate."""
        self.result.set_result(Measurement(candidate_id=self.trial.candidate_id, error=kind, error_message=message))


class WorkQueue:
    """First come, first served; what comes back goes first."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._has_work = asyncio.Event()

    def put(self, work: Work) -> None:
        """Add to the end."""
        self._waiting.append(work)
        self._has_work.set()

    def put_back(self, works: list[Work]) -> None:
        """Add to the front, in this order."""
        self._waiting.extendleft(reversed(works))
        self._has_work.set()

    def take(self) -> Work:
        """Remove the first, right after `wait` said that there is one."""
        return self._waiting.popleft()

    async def wait(self, timeout_sec: float | None = None) -> bool:
        """Wait until there is work; False when none came in time."""
        try:
            async with asyncio.timeout(timeout_sec):
                while not self._waiting:
                    self._has_work.clear()
                    await self._has_work.wait()
        except TimeoutError:
            return False
        return True

    def fail_all(self, error: BaseException) -> None:
        """Raise an error to all who wait."""
        works, self._waiting = self._waiting, deque()
        for work in works:
            work.result.set_exception(error)
