"""Moments at which the tracker has to look at something.

A timer is never cancelled: what it calls checks whether it still matters.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

Due = Callable[[], None]


class Timers:
    """A heap of moments, and what to call then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due]] = []
        self._count = 0

    def add(self, at_sec: float, due: Due) -> None:
        """Have `due` called once it is `at_sec`."""
        self._count += 1
        heapq.heappush(self._heap, (at_sec, self._count, due))

    def next_sec(self) -> float | None:
        """Return when the earliest is due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[Due]:
        """Yield what is due, earliest first, and what becomes due meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]
