"""Trials that wait for a device. Use it from one event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Measurement, Trial


@dataclass(frozen=True, slots=True, eq=False)
class QueuedTrial:
    """One trial with its artifact, and a future for the result."""

    artifact: Artifact
    trial: Trial
    result: Future[Measurement] = field(default_factory=Future)


def queued_batch(artifacts: Iterable[Artifact], trials: Sequence[Trial]) -> list[QueuedTrial]:
    """Return a batch of trials, the last of them marked as such."""
    by_digest = {artifact.digest: artifact for artifact in artifacts}
    ending = [*trials[:-1], *(replace(trial, ends_batch=True) for trial in trials[-1:])]
    return [QueuedTrial(by_digest[trial.artifact_digest], trial) for trial in ending]


class TrialQueue:
    """FIFO queue; returned trials go to the front."""

    def __init__(self, trials: Iterable[QueuedTrial] = (), *, idle_sec: float = 0.0) -> None:
        """Start with some trials.

        Args:
            idle_sec: how long `wait_idle` waits for more; 0 when nothing will be added.
        """
        self._waiting = deque(trials)
        self._idle_sec = idle_sec
        self._has_work = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, queued: QueuedTrial) -> None:
        """Append trials."""
        self._waiting.append(queued)
        self._has_work.set()

    def put_back(self, trials: Iterable[QueuedTrial]) -> None:
        """Insert trials at the front, in this order."""
        self._waiting.extendleft(reversed(list(trials)))
        self._has_work.set()

    def drop(self, trials: Iterable[QueuedTrial]) -> None:
        """Remove some waiting trials."""
        dropped = set(trials)
        self._waiting = deque(queued for queued in self._waiting if queued not in dropped)

    def peek(self, count: int) -> list[QueuedTrial]:
        """Return the next few without removing them."""
        return [queued for queued, _ in zip(self._waiting, range(count), strict=False)]

    def take(self) -> QueuedTrial:
        """Remove and return the first; call it right after `wait` or `wait_idle` reported one."""
        return self._waiting.popleft()

    async def wait(self) -> None:
        """Wait until there is work."""
        while not self._waiting:
            self._has_work.clear()
            await self._has_work.wait()

    def wake(self) -> None:
        """Have all waiting tasks look again."""
        self._has_work.set()

    async def wait_idle(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Wait until there is work; False when none came within the idle time, or the wait is over at a `wake`."""
        if self._waiting or not self._idle_sec:
            return bool(self._waiting)
        try:
            async with asyncio.timeout(self._idle_sec):
                while not self._waiting and not is_over():
                    self._has_work.clear()
                    await self._has_work.wait()
        except TimeoutError:
            return False
        return bool(self._waiting)

    @property
    def is_final(self) -> bool:
        """True if no more trials will be added."""
        return not self._idle_sec

    def fail_all(self, error: BaseException) -> None:
        """Fail all waiting trials with an error."""
        trials, self._waiting = self._waiting, deque()
        for queued in trials:
            queued.result.set_exception(error)
