"""Timers of the tracker, keyed by object.

One that no longer matters is cancelled: it would else wait in memory for its moment, which may be years away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import TypeAlias

Due = Callable[[], None]
_Entry: TypeAlias = tuple[float, int, Hashable, Due]
"""Moment, number of the entry, key and callback."""

_MIN_STALE = 256
"""Minimum number of stale entries that may remain in the heap."""


class Timers:
    """A heap of moments with their callbacks."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[Hashable, _Entry] = {}
        """Valid entry of the heap, by key."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, key: Hashable, at_sec: float, due: Due) -> None:
        """Have `due` called at `at_sec`, instead of this key's earlier timer."""
        former = self._entries.get(key)
        if former is not None and former[0] == at_sec and former[3] is due:
            return
        self._count += 1
        entry = self._entries[key] = at_sec, self._count, key, due
        heapq.heappush(self._heap, entry)
        self._drop_stale()

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer of this key. Idempotent."""
        if self._entries.pop(key, None) is not None:
            self._drop_stale()

    def is_set(self, key: Hashable) -> bool:
        """Tell whether this key has a timer."""
        return key in self._entries

    def next_sec(self) -> float | None:
        """Return the time of the earliest timer."""
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float, limit: int) -> Iterator[Due]:
        """Yield the due timers, earliest first, including those due meanwhile; at most `limit`."""
        for _ in range(limit):
            next_sec = self.next_sec()
            if next_sec is None or next_sec > now:
                return
            _, _, key, due = heapq.heappop(self._heap)
            del self._entries[key]
            yield due

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _MIN_STALE:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
