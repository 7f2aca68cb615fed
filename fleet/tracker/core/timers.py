"""Timers of the tracker, keyed by object.

One that no longer matters is cancelled: it would else wait in memory for its moment, which may be years away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator

Due = Callable[[], None]

_MIN_STALE = 256
"""Minimum number of stale entries that may remain in the heap."""


class Timers:
    """A heap of moments with their callbacks."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable, Due]] = []
        self._numbers: dict[Hashable, int] = {}
        """Valid entry of the heap, by key."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def set(self, key: Hashable, at_sec: float, due: Due) -> None:
        """Have `due` called at `at_sec`, instead of this key's earlier timer."""
        self._count += 1
        self._numbers[key] = self._count
        heapq.heappush(self._heap, (at_sec, self._count, key, due))
        self._drop_stale()

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer of this key. Idempotent."""
        if self._numbers.pop(key, None) is not None:
            self._drop_stale()

    def is_set(self, key: Hashable) -> bool:
        """Tell whether this key has a timer."""
        return key in self._numbers

    def next_sec(self) -> float | None:
        """Return the time of the earliest timer."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float, limit: int) -> Iterator[Due]:
        """Yield the due timers, earliest first, including those due meanwhile; at most `limit`."""
        for _ in range(limit):
            next_sec = self.next_sec()
            if next_sec is None or next_sec > now:
                return
            _, _, key, due = heapq.heappop(self._heap)
            del self._numbers[key]
            yield due

    def _counts(self, entry: tuple[float, int, Hashable, Due]) -> bool:
        return self._numbers.get(entry[2]) == entry[1]

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._numbers) + _MIN_STALE:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)
