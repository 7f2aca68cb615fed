"""Moments at which the state has to look at something.

A timer is never cancelled: whoever is called checks whether it still matters.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any


class Timers:
    """A heap of moments."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def add(self, at_sec: float, due: Callable[[Any], None], key: object) -> None:
        """Call `due(key)` once it is `at_sec`."""
        self._count += 1
        heapq.heappush(self._heap, (at_sec, self._count, due, key))

    def next_sec(self) -> float | None:
        """When the earliest is due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[tuple[Callable[[Any], None], Any]]:
        """Yield what is due, earliest first, and what becomes due meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            _, _, due, key = heapq.heappop(self._heap)
            yield due, key
